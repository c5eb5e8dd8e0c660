"""What runs in C of bundles gives what its steps give one by one, to the bit."""

from pathlib import Path
import sys

from _long import long_but

sys.path += [str(Path(__file__).parents[1] / "mlprogram" / name) for name in ("", "run")]
from ane_book.runtime import Session
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.run.stretches import NativeStretch
from mlprogram.run.table import Table
import pytest
from test_stretches import check

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

RECIPES = [
    ("llama", {"kv": "state"}),
    ("llama", {"kv": "host"}),
    ("qwen3", {"kv": "state", "quant": "int8"}),
    ("llama", {"kv": "state", "form": "apple"}),
    ("gemma3_text", {"kv": "state"}),
    ("llama", {"kv": "state", "state_write": "select"}),
    ("lfm2", {"kv": "host"}),
]


@pytest.mark.parametrize("family, recipe", long_but(RECIPES, *RECIPES[:2]))
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_bundles(tiny_bundle, family, recipe, precision):
    _, bundle = tiny_bundle(family, **recipe)
    for path in bundle.path.glob("*.mlpackage"):
        assert check(MLProgram(path, precision=precision), 3) > 0


@pytest.mark.parametrize("recipe", [{"kv": "state"}, {"kv": "host", "quant": "int8"}])
def test_a_short_prompt_leaves_columns_out(tiny_bundle, recipe, monkeypatch):
    """And gives the same logits, of it and of what comes after it."""
    _, bundle = tiny_bundle("llama", context=64, prefill=32, **recipe)
    asked = Table._used

    def logits(session: Session, all_columns: bool) -> bytes:
        found: list[int] = []

        def used(table: Table, *arguments) -> int:
            found.append(0 if all_columns else asked(table, *arguments))
            return found[-1]

        monkeypatch.setattr(Table, "_used", used)
        session.reset()
        made = [session.prefill([1, 2, 3, 4, 5]), session.decode(6), session.prefill([7] * 11)]
        assert {*found} == ({0} if all_columns else {0, 5, 11})
        return b"".join(array.tobytes() for array in made)

    session = Session(bundle.path)
    assert logits(session, False) == logits(session, True)


def test_a_decoder_is_one_stretch(tiny_bundle):
    """Also where the position of the new rows is known at run time only."""
    for kv, form in (("state", "rows"), ("host", "apple")):
        _, bundle = tiny_bundle("llama", kv=kv, form=form)
        (path,) = bundle.path.glob("layers*.mlpackage")
        for name in ("decode", "prefill") if form == "rows" else ("decode",):
            parts = MLProgram(path, name).compiled.parts
            assert [type(part) for part in parts] == [NativeStretch]
