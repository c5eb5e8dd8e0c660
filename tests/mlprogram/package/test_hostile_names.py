"""What stands in files that nobody vouches for does not steer the terminal that shows it."""

import re

from _command import mlprogram, refused
from _package import WEIGHTS, X, op, write
from mlprogram.errors import InvalidInput, printable
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

    @pytest.mark.parametrize("command, says", [
        ("inspect", f"x{SPELLED}"), ("run", f"input   x{SPELLED}"), ("diff", f"y{SPELLED}"),
    ])  # fmt: skip
    def test_commands(self, path, command, says):
        done = mlprogram(command, path)
        assert done.returncode == 0 and says in done.stdout
        assert not CONTROL.search(done.stdout + done.stderr)

    def test_errors(self, path):
        (path / WEIGHTS.parents[1] / "model.mlmodel").write_bytes(b"damaged")
        message = refused("inspect", path, by=mlprogram)
        assert f"p{SPELLED}: the model file is damaged" in message and not CONTROL.search(message)
