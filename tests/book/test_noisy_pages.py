"""What pages assert holds where half precision rounds in another way: see tests/noisy.

Each page runs as on a Mac, where Core ML is what runs a session in half precision that names no
backend. The executor's own results in half precision are moved as well, since another processor may
add in another order; not on the pages of EXACT, which name the executor and show its exact bits.
"""

import os
from pathlib import Path

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


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_asserts_survives_noise(page):
    folder = {"metadata": {"path": str(page.parent)}}
    client = NotebookClient(
        jupytext.read(page), timeout=1800, kernel_name="python3", resources=folder
    )
    path = [str(ROOT / "tests" / "noisy"), *filter(None, [os.environ.get("PYTHONPATH")])]
    whose = "coreml" if page.stem in EXACT else "executor"
    client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "NOISY": whose})


def test_pages_that_are_exact_are_pages():
    assert EXACT.keys() <= {page.stem for page in PAGES}
