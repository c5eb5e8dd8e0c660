"""L2 without a Mac: real child processes, a recorded plan, and one verdict for each way to fail.

What a Mac alone can show is not tested here: that the engine runs anything.
"""

import os
from pathlib import Path
import re
import sys
import time

from _command import ane_book as command
from _command import refused
from _graph import nine_ops
from ane_book import device
from ane_book.evidence.residency import measure
from ane_book.evidence.residency.child import run
from ane_book.evidence.residency.plan import PlannedOp, by_device, share
from ane_book.evidence.residency.verdict import messages
import pytest

MAC = Path(__file__).with_name("_mac.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return nine_ops(tmp_path_factory.mktemp("residency") / "graph.mlpackage")


def measured(package: Path, mode: str, soak: int = 125, **options):
    command = [sys.executable, str(MAC), mode]
    return measure(package, command=command, soak=soak, **{"timeout": 120.0} | options)


def test_off_a_mac_it_is_unmeasured_and_says_why(package):
    if device.neural_engine()[0]:
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
    assert figures["CPU_AND_NE_median"] < figures["CPU_ONLY_median"]
    assert {op.type for op in resident.ops} >= {"const", "ios18.conv"}, "constants are recorded"


VERDICTS = {
    "crash": ("crashed", "SIGKILL, while loading on CPU_AND_NE|while the plan|while loading"),
    "hang": ("hung", "not done after 3 s"),
    "lie": ("silent", "planned on the ANE, but results to the bit and speed .* are those of"),
    "refuse": ("refused", r"gave up \(exit status 0\).*ANECCompile\(\) FAILED"),
    "nan": ("numbers", "values that are no numbers"),
    "leak": ("leaking", "MB more after .* predictions"),
    "drift": ("drifting", "'wrap_out_1_relu' is another after 125 equal predictions"),
    "elsewhere": ("elsewhere", r"0% of the estimated time.*conv 'wrap_in0_0_conv' on the CPU"),
    "quit": ("crashed", "status 0, but not done: while its start"),
}


@pytest.mark.parametrize("mode", VERDICTS)
def test_each_way_to_fail_has_its_own_verdict(package, mode):
    found = measured(package, mode, **({"timeout": 3.0} if mode == "hang" else {}))
    verdict, reason = VERDICTS[mode]
    assert found.verdict == verdict, found
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
    outcome = run([sys.executable, "-c", script], tmp_path, timeout=2.0, memory=1 << 40)
    assert outcome.ended == "timeout"
    grandchild = int(outcome.said)
    for _ in range(100):
        try:
            os.kill(grandchild, 0)
        except ProcessLookupError:
            return
        if b"\nState:\tZ" in Path(f"/proc/{grandchild}/status").read_bytes():
            return
        time.sleep(0.05)
    pytest.fail("the child's child still runs")


def test_half_a_line_of_a_child_that_died_is_left_out(tmp_path):
    script = (
        "import os, pathlib; f = pathlib.Path(os.environ['ANE_BOOK_FOLDER'], 'events.jsonl'); "
        'f.write_text(\'{"step": "started", "next": "x"}\\n{"step": "pl\'); os.abort()'
    )
    outcome = run([sys.executable, "-c", script], tmp_path, timeout=60.0, memory=1 << 40)
    assert outcome.code < 0 and outcome.reached == "x" and len(outcome.events) == 1


class TestPlan:
    def test_constants_do_not_count(self):
        ops = [PlannedOp(f"w{i}", "const", None) for i in range(90)]
        ops += [PlannedOp("c", "ios18.conv", "ane", ("cpu", "ane"), 0.8)]
        ops += [PlannedOp("r", "ios18.relu", "cpu", ("cpu", "ane"), 0.2)]
        assert share(ops) == pytest.approx(0.8)
        assert by_device(ops)["ane"]["ops"] == 1

    def test_costs_weigh_not_numbers_of_ops(self):
        ops = [PlannedOp(f"r{i}", "relu", "ane", (), 0.001) for i in range(100)]
        ops += [PlannedOp("c", "conv", "cpu", (), 0.9)]
        assert share(ops) == pytest.approx(0.1)

    def test_without_costs_every_op_counts_alike(self):
        ops = [PlannedOp("a", "conv", "ane"), PlannedOp("b", "conv", "cpu")]
        assert share(ops) == 0.5

    def test_a_plan_that_says_nothing_is_no_share(self):
        assert share([PlannedOp("a", "conv", None)]) is None


@pytest.mark.parametrize(
    "line",
    [
        "Error: ANECCompile() FAILED",
        "RuntimeWarning: You will not be able to run predict() on this Core ML model.",
        "MILCompilerForANE error: failed to compile ANE model",
    ],
)
def test_messages_of_compilers_are_known(line):
    assert messages(f"harmless\n{line}\nharmless") == [line]


def test_what_is_no_package_is_told_on_any_machine(tmp_path):
    assert "no such package" in refused("residency", tmp_path / "none.mlpackage")
    assert "is not a .mlpackage" in refused("residency", tmp_path)


def test_the_command_says_that_it_is_unmeasured(package):
    done = command("residency", package)
    if not device.neural_engine()[0]:
        assert done.returncode == 3 and "unmeasured" in done.stdout
