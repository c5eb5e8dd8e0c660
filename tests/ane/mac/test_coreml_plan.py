"""What is read on a Mac: the plan of coremltools, played from what was recorded of one."""

from pathlib import Path
import sys

from _networks import half, save
from _patience import HANGING
from coremltools.converters.mil import Builder as mb
from mlprogram import machine
from mlprogram.ane.mac import plan as coreml_plan
from mlprogram.ane.placement import place
import pytest

MAC = Path(__file__).with_name("_mac.py")


@pytest.fixture(scope="module")
def placement(tmp_path_factory):
    """The graph that the plan was recorded of: two linear layers, band_part, two linear layers."""
    weight = half(128, 128)

    def twice(x, tag):
        for i in range(2):
            x = mb.linear(x=x, weight=weight, name=f"wrap_{tag}_{i}_lin")
            x = mb.relu(x=x, name=f"wrap_{tag}_{i}_relu")
        return x

    def network(x):
        x = mb.band_part(x=twice(x, "in0"), lower=-1, upper=0, name="band_part_0")
        return twice(x, "out")

    path = tmp_path_factory.mktemp("plan") / "band_part.mlpackage"
    return place(save(path, network, (1, 128, 128)))


def test_a_recorded_plan_beside_the_prediction(placement):
    """The one graph of the source whose choice is not the shortest path: four ops stay behind."""
    plan = coreml_plan.ask(placement.package, "main", [sys.executable, str(MAC), "cut"])
    assert plan.devices(placement) == ["ANE"] * 4 + ["CPU"] + ["ANE"] * 4
    assert placement.devices == ["ANE"] * 4 + ["CPU"] * 5
    assert plan.agreement(placement) == (5, 9)
    assert plan.line(placement) == "actual: 8 of 9 ops planned on the ANE; 5 of 9 as predicted"
    facts = plan.to_json(placement)
    assert facts["measured"] and facts["costs"]["band_part_0"] == 0.033
    assert not [name for name in facts["devices"] if "weight" in name], "constants have no device"


def test_off_a_mac_one_line_says_why(placement, monkeypatch):
    monkeypatch.setattr(machine, "macos_version", lambda: None)
    plan = coreml_plan.read_plan(placement.package, "main")
    assert plan.line(placement) == "actual: unmeasured (needs a Mac)"
    assert plan.to_json(placement) == {"measured": False, "reason": "needs a Mac"}


@pytest.mark.parametrize(
    "script, reason",
    [
        ("import os; os.abort()", "exit code -6 at its start"),
        ("import time; time.sleep(60)", "out of time at its start"),
        ("", "exit code 0 at its start"),
    ],
)
def test_a_child_that_crashes_hangs_or_says_nothing(placement, script, reason):
    child = [sys.executable, "-c", script]
    plan = coreml_plan.ask(
        placement.package, "main", child, timeout=1.0 if "sleep" in script else HANGING
    )
    assert plan.reason == f"Core ML did not answer: {reason}"
