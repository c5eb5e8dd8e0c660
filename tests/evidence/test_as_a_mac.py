"""The commands whole, as on a Mac: of `_as_a_mac.py`, in processes of their own.

Core ML's binding, its plan and the kernel's answers are played. All the rest is what a Mac runs.
"""

import json
from pathlib import Path
import sys

from _played_mac import played
import ane_book
from ane_book.bundle import Bundle
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "research" / "experiments"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has its own")


@pytest.fixture
def mac(tmp_path, monkeypatch):
    """`mac(mode, "-m", "ane_book", ...)` -> the finished command."""
    return played(tmp_path, monkeypatch)


def command(*arguments) -> tuple:
    return "-m", "ane_book", *arguments


@pytest.fixture
def bundle(tiny, tmp_path) -> Bundle:
    """One of its own, since it keeps what is found; its packages have one function each."""
    folder, out = str(tiny("llama")[1]), tmp_path / "bundle"
    return ane_book.convert(folder, out=out, context=32, functions="one")


def test_the_doctor_has_what_a_mac_says(mac):
    said = mac("well", *command("doctor")).stdout
    assert "macOS 26.1, arm64" in said and "Apple M4" in said
    assert "coremltools' Core ML binding" in said and "present on Apple silicon" in said


@pytest.mark.long
def test_residency_of_a_bundle_goes_into_its_evidence(mac, bundle):
    """Every function, with states and golden inputs: exit code 0."""
    done = mac("well", *command("residency", bundle.path, "--soak", 25))
    assert done.returncode == 0, (done.stdout, done.stderr)
    functions = [name for part in bundle.manifest.packages for name in part.functions]
    lines = done.stdout.splitlines()
    assert len(lines) == len(functions) and all(": resident: " in line for line in lines)
    level = Bundle.open(bundle.path).evidence.levels["L2"]
    assert level.status == "passed" and level.machine["chip"] == "Apple M4"
    assert level.figures["resident"] == len(functions)


@pytest.mark.long
def test_an_experiment_measures(mac):
    done = mac("well", EXPERIMENTS / "settle_conv_height.py")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == "measured" and found["rows"], found
