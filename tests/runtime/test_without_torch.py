"""A session whose plans are kept needs no torch, and nothing else that only some answers need."""

import os
import subprocess
import sys

from mlprogram.kernels import native
import pytest

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

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
