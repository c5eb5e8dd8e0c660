"""Notebooks from the wheel, with no checkout around; `make elsewhere` runs all of them."""

from pathlib import Path
import subprocess
import sys

RUN = Path(__file__).parent / "elsewhere" / "run.py"


def test_notebooks_run_from_the_wheel():
    """One that reads records of every kind, and one that reads reports and scripts."""
    names = ["09-experiment-index", "on-a-mac"]
    done = subprocess.run(
        [sys.executable, str(RUN), *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" min\n") == len(names)
