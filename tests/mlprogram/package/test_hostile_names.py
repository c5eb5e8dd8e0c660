"""What stands in files that nobody vouches for does not steer the terminal that shows it."""

import os
import re

from _command import ane_book, refused, start
from _package import WEIGHTS, X, op, write
from _patience import HANGING
from ane_book.errors import InvalidInput, printable
from mlprogram.tables import table
import pytest

BAD = "\x1b]0;title\x07\x1b[31m\r\x9b2J\x7f"
SPELLED = r"\x1b]0;title\x07\x1b[31m\x0d\x9b2J\x7f"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_control_characters_are_spelled_out():
    assert printable(f"é 🙂\t{BAD}\n") == f"é 🙂\t{SPELLED}\n"
    assert str(InvalidInput(f"{BAD} is bad")) == f"{SPELLED} is bad"
    assert table([(BAD, "1"), ("a\nb", "2")]).splitlines() == [
        f"{SPELLED}  1", r"a\nb".ljust(len(SPELLED)) + "  2"
    ]  # fmt: skip


class TestAPackage:
    @pytest.fixture
    def path(self, tmp_path):
        made, out = f"made{BAD}", f"y{BAD}\nfake"
        operations = [op("add", {made: X}, x=f"x{BAD}", y=f"x{BAD}"), op("abs", {out: X}, x=made)]
        return write(tmp_path / f"p{BAD}", operations, outputs=[out], inputs={f"x{BAD}": X})

    def test_inspect(self, path):
        done = ane_book("inspect", path, "--run")
        assert done.returncode == 0 and f"input   x{SPELLED}" in done.stdout
        assert not CONTROL.search(done.stdout + done.stderr)

    def test_diff(self, path):
        done = ane_book("diff", path)
        assert done.returncode == 0 and f"y{SPELLED}" in done.stdout
        assert not CONTROL.search(done.stdout + done.stderr)

    def test_errors(self, path):
        (path / WEIGHTS.parents[1] / "model.mlmodel").write_bytes(b"damaged")
        message = refused("inspect", path)
        assert f"p{SPELLED}: the model file is damaged" in message and not CONTROL.search(message)


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_an_answer(tiny_bundle):
    """A random model of bytes says a good many control characters."""
    import pty

    bundle = tiny_bundle("llama")[1].path
    command = ["run", bundle, "Hi", "--temperature", "5", "--seed", "0", "--max-tokens", "24"]
    exact = ane_book(*command).stdout
    assert len(CONTROL.findall(exact)) > 2
    ours, theirs = pty.openpty()
    with start(*command, stdout=theirs) as process:
        os.close(theirs)
        assert process.wait(timeout=HANGING) == 0
    shown = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")  # which a terminal makes of \n
    os.close(ours)
    assert shown == printable(exact)
