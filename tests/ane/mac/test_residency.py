"""L2 without a Mac: real child processes, a recorded plan, and one verdict for each way to fail.

What a Mac alone can show is not tested here: that the engine runs anything.
"""

from dataclasses import asdict
import os
from pathlib import Path
import re
import sys

from _command import mlprogram as command
from _command import refused
from _long import long_but
from _nine_ops import nine_ops
from _patience import HANGING, until
from mlprogram import machine
from mlprogram.ane.mac.child import Outcome, run
from mlprogram.ane.mac.plan import CoreMLPlan, PlannedOp
from mlprogram.ane.mac.residency import measure
from mlprogram.ane.mac.verdict import judge
import numpy as np
import pytest

MAC = Path(__file__).with_name("_mac.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return nine_ops(tmp_path_factory.mktemp("residency") / "graph.mlpackage")


def measured(package: Path, mode: str, soak: int = 125, **options):
    command = [sys.executable, str(MAC), mode]
    return measure(package, command=command, soak=soak, **{"timeout": HANGING} | options)


def test_off_a_mac_it_is_unmeasured_and_says_why(package):
    if machine.neural_engine()[0]:
        pytest.skip("this machine can tell")
    found = measure(package)
    assert found.verdict == "unmeasured" and "macOS" in found.reason


@pytest.fixture(scope="module")
def resident(package):
    return measured(package, "well")


def test_a_package_on_the_engine_is_resident(resident):
    assert resident.verdict == "resident", resident
    figures = resident.figures
    assert figures["ane_ops"] == 9 and figures["ane_cost"] == 1.0 and figures["soaked"] == 125
    medians = figures["CPU_AND_NE_median"], figures["CPU_ONLY_median"]
    assert medians == pytest.approx((0.01, 0.02))  # by the clock of `_mac.py`
    types = {op.type for op in resident.plan.ops}
    assert types >= {"const", "ios18.conv"}, "constants are recorded"
    assert figures["speed_to_cpu"] == 2 and "the CPU alone" not in resident.reason


def test_the_first_load_for_the_engine_comes_before_the_plan(resident):
    """Either of them has it compiled, once: 0.6 s here."""
    loads = resident.figures["CPU_AND_NE_cold"], resident.figures["CPU_AND_NE_warm"]
    assert loads == pytest.approx((0.6, 0))


class TestInputs:
    def test_a_package_alone_gets_random_ones_and_that_is_said(self, package, tmp_path, resident):
        copy = (
            "import pathlib, shutil, sys; own = pathlib.Path(sys.argv[2]).with_name('inputs.npz'); "
            "shutil.copy(own, sys.argv[1])"
        )
        file = tmp_path / "given.npz"
        found = measure(package, command=[sys.executable, "-c", copy, str(file)])
        inputs = np.load(file)
        assert found.figures["inputs"] == "random" and inputs["x0"].std() > 0.5
        assert "on random inputs" in resident.reason

    def test_given_ones_are_taken_as_they_are(self, package):
        nothing = [sys.executable, "-c", ""]
        found = measure(package, inputs={"x0": np.ones((1, 8, 4, 4))}, command=nothing)
        assert found.figures["inputs"] == "given"


JUDGED = {
    "nothing": ("resident", {}),
    "slower": ("resident", {"seconds": 0.08}),
    "no number": ("numbers", {"wrong": np.nan}),
    "the CPU's": ("silent", {"seconds": 0.02, "share": 0.0}),
    "its results to the bit, in another time": ("resident", {"share": 0.0}),
    "its speed with other results": ("resident", {"seconds": 0.02}),
    "memory": ("leaking", {"grown": 33 << 20}),
    "memory before its first fifth is over": ("resident", {"begun": 99 << 20}),
    "numbers, after many": ("drifting", {"late": -1.0}),
    "the plan": ("elsewhere", {"device": "cpu"}),
    "numbers before the plan": ("numbers", {"device": "cpu", "wrong": -1.0}),
}


@pytest.mark.parametrize(("expected", "given"), JUDGED.values(), ids=JUDGED)
def test_results_times_and_memory_are_judged(tmp_path, expected, given):
    """What the children below leave, written here."""
    right = np.arange(1.0, 9.0)
    mine = right * (1 + given.get("share", 0.001)) * given.get("wrong", 1.0)
    for name, output in (("CPU_ONLY", right), ("CPU_AND_NE", mine)):
        np.savez(tmp_path / f"{name}.npz", y=output)
    np.savez(tmp_path / "soak.npz", y=mine * given.get("late", 1.0))
    op = PlannedOp("c", "conv", given.get("device", "ane"), ("cpu", "ane"), 1.0)
    events = [{"step": "plan", "ops": [asdict(op)]}]
    times = {"CPU_ONLY": 0.02, "CPU_AND_NE": given.get("seconds", 0.01)}
    events += [
        {"step": "predicted", "units": units, "first": seconds, "median": seconds}
        for units, seconds in times.items()
    ]
    held = [(1 << 30) - given.get("begun", 0), *[1 << 30] * 4]
    held[-1] += given.get("grown", 0)
    events += [
        {"step": "soak", "done": 25 * (i + 1), "resident": bytes_} for i, bytes_ in enumerate(held)
    ]
    outcome = Outcome("exit", 0, [*events, {"step": "done"}])
    found = judge(outcome, tmp_path, "CPU_AND_NE", {"y": right}, "given")
    assert found.verdict == expected, found.reason
    slower = given is JUDGED["slower"][1]
    assert slower == found.reason.endswith("; the CPU alone is 4 times as fast")


VERDICTS = {
    "crash": ("crashed", "SIGKILL, while loading on CPU_AND_NE"),
    "hang": ("hung", "not done after 1 s"),
    "lie": ("silent", "planned on the ANE, but results to the bit and speed .* are those of"),
    "refuse": ("refused", r"gave up \(exit status 0\).*ANECCompile\(\) FAILED"),
    "nan": ("numbers", "values that are no numbers"),
    "leak": ("leaking", "MB more after .* predictions"),
    "drift": ("drifting", "'wrap_out_1_relu' has other numbers after 125 equal predictions"),
    "elsewhere": ("elsewhere", r"0% of the estimated time.*conv 'wrap_in0_0_conv' on the CPU"),
    "quit": ("crashed", "status 0, but not done: while its start"),
}


@pytest.mark.parametrize("mode", long_but(VERDICTS, "crash", "hang", "refuse", "quit"))
def test_each_way_to_fail_has_its_own_verdict(package, mode):
    found = measured(package, mode, **({"timeout": 1.0} if mode == "hang" else {}))
    expected, reason = VERDICTS[mode]
    assert found.verdict == expected, found
    assert re.search(reason, found.reason), found.reason


def test_a_child_that_takes_too_much_memory_is_ended(package):
    found = measured(package, "eat", memory=400 << 20)
    assert found.verdict == "memory", found
    assert found.figures["peak_bytes"] < 4 << 30


def test_nothing_that_a_child_started_outlives_it(tmp_path):
    script = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']); "
        "print(p.pid, flush=True); time.sleep(300)"
    )
    for seconds in (0.5, 5.0, HANGING):  # until it had the time to start another
        outcome = run([sys.executable, "-c", script], tmp_path, timeout=seconds, memory=1 << 40)
        assert outcome.ended == "timeout"
        if outcome.said:
            break
    grandchild = int(outcome.said)

    def ended() -> bool:
        try:
            os.kill(grandchild, 0)
            return b"\nState:\tZ" in Path(f"/proc/{grandchild}/status").read_bytes()
        except (ProcessLookupError, FileNotFoundError):
            return True

    until(ended)


class TestPlan:
    def test_constants_do_not_count(self):
        ops = [PlannedOp(f"w{i}", "const", None) for i in range(90)]
        ops += [PlannedOp("c", "ios18.conv", "ane", ("cpu", "ane"), 0.8)]
        ops += [PlannedOp("r", "ios18.relu", "cpu", ("cpu", "ane"), 0.2)]
        plan = CoreMLPlan(tuple(ops))
        assert plan.ane_share == pytest.approx(0.8)
        assert plan.by_device()["ane"]["ops"] == 1

    def test_costs_weigh_not_numbers_of_ops(self):
        ops = [PlannedOp(f"r{i}", "relu", "ane", (), 0.001) for i in range(100)]
        ops += [PlannedOp("c", "conv", "cpu", (), 0.9)]
        assert CoreMLPlan(tuple(ops)).ane_share == pytest.approx(0.1)

    def test_without_costs_every_op_counts_alike(self):
        ops = [PlannedOp("a", "conv", "ane"), PlannedOp("b", "conv", "cpu")]
        assert CoreMLPlan(tuple(ops)).ane_share == 0.5

    def test_a_plan_that_says_nothing_is_no_share(self):
        assert CoreMLPlan((PlannedOp("a", "conv", None),)).ane_share is None


def test_what_is_no_package_is_told_on_any_machine(tmp_path):
    assert "no such package" in refused("residency", tmp_path / "none.mlpackage", by=command)
    assert "is not a .mlpackage" in refused("residency", tmp_path, by=command)


def test_the_command_says_that_it_is_unmeasured(package):
    done = command("residency", package)
    if not machine.neural_engine()[0]:
        assert done.returncode == 3 and "unmeasured" in done.stdout
