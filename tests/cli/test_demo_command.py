"""`ane-book demo`: answers of a bundle, and what there is for evidence."""

from io import StringIO
import json
from pathlib import Path
import shutil

from _command import ane_book, chatty_copy
from ane_book.bundle import seal
from ane_book.cli.demo import PROMPTS, golden_agreement, present
from ane_book.errors import InvalidBundle
from ane_book.runtime import Session
import pytest
from rich.console import Console


@pytest.fixture(scope="module")
def sealed(tiny_bundle, tmp_path_factory) -> Path:
    """A bundle as if it had been written with a chat template."""
    bundle = tiny_bundle("llama", kv="state", context=128)[1].path
    copy = chatty_copy(bundle, tmp_path_factory.mktemp("chatty"))
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"seal": seal(manifest)}))
    return copy


def recorded(session: Session, columns: int = 90, **options) -> str:
    console = Console(file=StringIO(), record=True, width=columns, highlight=False)
    present(session, console, **options)
    return console.export_text()


class TestDemo:
    def test_a_process_shows_answers_and_evidence(self, sealed):
        done = ane_book("demo", sealed, "--precision", "fp32")
        assert done.returncode == 0, done.stderr
        session = Session(sealed, "fp32", "mil")
        for prompt in PROMPTS:
            assert f"> {prompt}\n" in done.stdout
        words = " ".join(done.stdout.split())
        for level in ("L0 laws", "L1 parity", "L2 residency", "L3 quality"):
            assert f"{level} unmeasured: " in words
        assert "BUNDLE" not in words
        manifest = session.bundle.manifest
        for name, digest in manifest.sha256.items():
            if name == "head.mlpackage/Data/com.apple.CoreML/weights/weight.bin":
                assert digest[:16] in words
        assert "8 of 8 next tokens are those of golden.npz" in words
        assert "engine unmeasured: no Neural Engine here" in words or "Core ML" in words

    def test_what_measures_a_level_can_be_pasted(self, sealed):
        text = recorded(Session(sealed, "fp32", "mil"), 120, model="my bundle")
        assert ": ane-book check 'my bundle' --parity" in text

    def test_it_fits_a_narrow_terminal(self, sealed):
        text = recorded(Session(sealed, "fp32", "mil"), 40)
        assert max(map(len, text.splitlines())) <= 40

    def test_tokens_that_are_not_pytorch_s_are_counted(self, sealed):
        session = Session(sealed, "fp32", "mil")
        golden = session.bundle.golden()
        golden["argmax"] = golden["argmax"].copy()
        golden["argmax"][:3] += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(session.bundle), "golden", lambda self: golden)
            assert golden_agreement(session) == (5, 8)

    def test_a_changed_byte_ends_it(self, sealed, tmp_path):
        broken = Path(shutil.copytree(sealed, tmp_path / "broken"))
        weights = next(broken.glob("head.mlpackage/**/weight.bin"))
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        with pytest.raises(InvalidBundle, match="not as it was written"):
            recorded(Session(broken, "fp32", "mil"))
