"""Notebooks from the wheel, with no checkout around; `make elsewhere` runs all of them."""

from pathlib import Path
import subprocess
import sys

import pytest

RUN = Path(__file__).parents[1] / "elsewhere" / "run.py"


@pytest.mark.long
def test_notebooks_run_from_the_wheel():
    """One that reads records of every kind, and one that reads reports and scripts."""
    names = ["experiment-index", "reports"]
    done = subprocess.run(
        [sys.executable, str(RUN), *names, names[0]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, summary = done.stdout.splitlines()
    assert [line.split()[::2] for line in lines] == [[name, "s"] for name in names]
    assert summary.startswith("2 of 2 notebooks ran to their end, in ")


def test_a_name_that_no_notebook_has_is_told_before_anything_is_built():
    done = subprocess.run(
        [sys.executable, str(RUN), "no-such-page"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no notebook is called 'no-such-page'; there are " in done.stderr
