"""What opening the default model's decode function, and its first token, take of a process."""

import json
from pathlib import Path
import subprocess
import sys

import ane_book
import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say the peak")

MOST = 1.25  # times the weights of fp16
OPENED = 0.35  # of the weights: what opening may take, which reads none of them

CHILD = """
import json, sys
from mlprogram import MLProgram
from mlprogram.analysis.memory import peak_resident
import torch  # whose own pages are not of the program

before = peak_resident()
program = MLProgram(sys.argv[1], "decode")
state, inputs, _ = program.make_state(), program.random_inputs(), program.compiled
opened = peak_resident()
program.predict(inputs, state)
print(json.dumps([opened - before, peak_resident() - before]))
"""


def test_opening_reads_no_weights_and_a_token_keeps_no_copy_of_them():
    (package,) = ane_book.convert("smollm2-135m-instruct").path.glob("layers*.mlpackage")
    weights = sum(file.stat().st_size for file in Path(package).rglob("weight*.bin"))
    child = [sys.executable, "-c", CHILD, str(package)]
    opened, answered = json.loads(subprocess.check_output(child))
    assert opened < OPENED * weights
    assert weights < answered < MOST * weights
