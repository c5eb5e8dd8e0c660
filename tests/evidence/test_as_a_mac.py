"""The commands whole, as on a Mac: of `_as_a_mac.py`, in processes of their own.

Core ML's binding, its plan and the kernel's answers are played. All the rest is what a Mac runs.
"""

import json
from pathlib import Path
import sys

from _nine_ops import nine_ops
from _played_mac import played
import ane_book
from ane_book.bundle import Bundle
from ane_book.evidence.report import read_report
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "research" / "experiments"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has its own")


@pytest.fixture
def mac(tmp_path, monkeypatch):
    """`mac(mode, "-m", "ane_book", ...)` -> the finished command."""
    return played(tmp_path, monkeypatch)


def command(*arguments) -> tuple:
    return "-m", "ane_book", *arguments


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return nine_ops(tmp_path_factory.mktemp("as-a-mac") / "graph.mlpackage")


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
def test_the_doctor_has_what_a_virtual_mac_says(mac, monkeypatch):
    monkeypatch.setenv("VIRTUAL", "1")
    assert "a virtual machine has no Neural Engine" in mac("well", *command("doctor")).stdout


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
def test_a_report_of_a_bundle_and_a_package(mac, bundle, package, tmp_path):
    own = ["--model", "none", "--no-experiments", "--soak", 25, "--out", tmp_path / "out"]
    done = mac("well", *command("report", bundle.path, package, *own))
    assert done.returncode == 0, (done.stdout, done.stderr)
    report = read_report(tmp_path / "out" / "report.json")
    assert report.machine.chip == "Apple M4" and report.machine.neural_engine
    assert report.machine.system.startswith("macOS 26.1")
    engine = ["executor", "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"]
    assert report.units == engine == [speed.units for speed in report.subjects[0].speed]
    for speed in report.subjects[0].speed:
        assert speed.failed is None and speed.decode_tps is not None, speed
        assert speed.cold_s is not None and speed.warm_s is not None, speed
    for subject in report.subjects:
        assert subject.levels["L2"].status == "passed", subject.levels["L2"]
        assert {one.verdict for one in subject.functions} == {"resident"}
        assert all(one.ops for one in subject.functions)
    (function,) = report.subjects[1].functions  # a plan, beside the prediction
    assert len(function.ops) == 9 and function.ops[0][2] == "ane"
    assert function.as_predicted is None or function.as_predicted[1] <= 9
    assert function.figures["ane_cost"] == 1.0
    assert report.subjects[0].levels["L1"].status == "passed"
    assert "Apple M4" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_a_report_tells_of_a_state_that_is_lost_and_of_the_remedy(mac, bundle, tmp_path):
    """In the function's line, in the bundle's level, and on the page that its sender reads."""
    own = ["--model", "none", "--no-experiments", "--soak", 1, "--units", "CPU_AND_NE"]
    done = mac("forget", *command("report", bundle.path, *own, "--out", tmp_path / "out"))
    assert done.returncode == 0, (done.stdout, done.stderr)
    (subject,) = read_report(tmp_path / "out" / "report.json").subjects
    lost = "does not hold after two calls what the first one wrote"
    remedy = "convert with --state-write select, or --kv host (claim state-slice)"
    told = [one for one in subject.functions if one.verdict == "numbers"]
    assert {one.name.split()[0] for one in told} == {bundle.manifest.shards[0].package}
    assert all(lost in one.reason and remedy in one.reason for one in told)
    assert subject.levels["L2"].status == "failed" and remedy in subject.levels["L2"].reason
    assert remedy in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_an_experiment_measures(mac):
    done = mac("well", EXPERIMENTS / "settle_conv_height.py")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == "measured" and found["rows"], found
