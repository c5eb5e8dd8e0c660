"""What runs in C of bundles gives what its steps give one by one, to the bit."""

from pathlib import Path
import sys

from _long import long_but

sys.path += [str(Path(__file__).parents[1] / "mlprogram" / name) for name in ("", "run")]
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.run.stretches import NativeStretch
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


def test_a_decoder_is_one_stretch(tiny_bundle):
    """Also where the position of the new rows is known at run time only."""
    for kv, form in (("state", "rows"), ("host", "apple")):
        _, bundle = tiny_bundle("llama", kv=kv, form=form)
        (path,) = bundle.path.glob("layers*.mlpackage")
        for name in ("decode", "prefill") if form == "rows" else ("decode",):
            parts = MLProgram(path, name).compiled.parts
            assert [type(part) for part in parts] == [NativeStretch]
