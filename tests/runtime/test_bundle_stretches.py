"""What runs in C of bundles gives what its steps give one by one, to the bit."""

import os
from pathlib import Path
import subprocess
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


ANSWER = """
import sys, ane_book
session = ane_book.load(sys.argv[1], force=True)
print(session.generate([5, 6, 7], max_tokens=4).token_ids)
heavy = "torch coremltools google.protobuf llguidance safetensors filelock tokenizers"
print(*(name for name in heavy.split() if name in sys.modules))
"""


@pytest.mark.parametrize("kv", ["state", "host"])
def test_a_second_process_answers_without_torch(tiny_bundle, kv):
    """All plans of the bundle are in the cache by then, and nothing else asks for it."""
    _, bundle = tiny_bundle("llama", kv=kv)
    said = []
    for _ in range(2):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", ANSWER, str(bundle.path)]
        said.append(subprocess.run(command, env=environment, capture_output=True, text=True))
    (first, _), (second, imported) = (run.stdout.splitlines() for run in said)
    assert first == second and imported == ""
