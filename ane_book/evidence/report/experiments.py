"""Run the scripts in `research/experiments`, each of which settles one claim on a Mac.

A script prints one JSON object: name, claim, status, verdict, rows. With --dry-run it builds its
graphs, runs them with the executor and prints what it would measure, so that the same code is
tested without a Mac.
"""

import json
from pathlib import Path
import subprocess
import sys

from ane_book.evidence.report.private import scrub
from ane_book.evidence.report.schema import ReportedExperiment
from pydantic import ValidationError

TIMEOUT = 3600.0  # seconds per script: some compile for the engine many times


def find_folder() -> Path | None:
    """The folder of scripts in a checkout of this library's repository, or None."""
    folder = Path(__file__).parents[3] / "research" / "experiments"
    return folder if folder.is_dir() else None


def run_all(folder: Path | None, dry: bool, timeout: float = TIMEOUT) -> list[ReportedExperiment]:
    """Run every script in a folder, by name. dry: without a Mac."""
    scripts = sorted(folder.glob("settle_*.py")) if folder else []
    return [run_one(script, dry, timeout) for script in scripts]


def run_one(script: Path, dry: bool, timeout: float = TIMEOUT) -> ReportedExperiment:
    """Run a script in a process of its own; a failure becomes its verdict."""
    command = [sys.executable, str(script), *(["--dry-run"] if dry else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return ReportedExperiment.model_validate(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        failed = f"not done after {timeout:.0f} s"
    except (ValueError, IndexError, ValidationError):
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        failed = f"exit status {done.returncode}: {scrub(lines[-1])[:300]}"
    name = script.stem.removeprefix("settle_").replace("_", "-")
    return ReportedExperiment(name=name, claim=name, status="failed", verdict=failed)
