"""What pages assert holds where half precision rounds in another way: see tests/noisy.

Each page runs as on a Mac, where Core ML is what runs a session in half precision that names no
backend. The executor's own results in half precision are moved as well, since another processor may
add in another order; not on the pages of EXACT, which name the executor and show its exact bits.
"""

import os
from pathlib import Path
import subprocess
import sys

import jupytext
from nbclient import NotebookClient
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in (ROOT / "book").glob("*.md") if "\nkernelspec:" in p.read_text()[:500])
EXACT = {
    "a-layer": "sums of small whole numbers are exact in any order",
    "the-cache": "a cache in a state and one on the host give the same bits",
    "testing": "a norm that overflowed adds nothing, so its row leaves as it came",
}

NOISE = """
import sys
from ane_book.runtime import choose_backend
import coremltools as ct
from coremltools.converters.mil import Builder as mb
import mlprogram
import numpy as np

@mb.program(input_specs=[mb.TensorSpec((1, 999))], opset_version=ct.target.iOS18)
def double(x):
    return mb.add(x=x, y=x, name="y")

model = ct.convert(double, minimum_deployment_target=ct.target.iOS18)
model.save(path := sys.argv[1])
core_ml = choose_backend()
assert core_ml.name == "coreml"
given = {"x": np.random.default_rng(0).standard_normal((1, 999)).astype(np.float32)}
exact = mlprogram.open(path).predict(given)["y"]
for program in model, core_ml.load(path, "main"):
    off = np.abs(program.predict(given)["y"].astype(float) - exact)
    assert (off <= np.spacing(np.abs(exact).astype(np.float16))).all()
    assert 0.6 < (off > 0).mean() < 0.73
"""


def noisy(whose: str) -> dict[str, str]:
    """The environment of a process with noise."""
    path = [str(ROOT / "tests" / "noisy"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "NOISY": whose}


@pytest.mark.long
def test_core_ml_is_a_step_of_half_precision_off(tmp_path):
    command = [sys.executable, "-c", NOISE, str(tmp_path / "double.mlpackage")]
    subprocess.run(command, check=True, env=noisy("coreml"))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_asserts_survives_noise(page):
    folder = {"metadata": {"path": str(page.parent)}}
    client = NotebookClient(
        jupytext.read(page), timeout=1800, kernel_name="python3", resources=folder
    )
    client.execute(env=noisy("coreml" if page.stem in EXACT else "executor"))


def test_pages_that_are_exact_are_pages():
    assert EXACT.keys() <= {page.stem for page in PAGES}
