"""What is read on a Mac: the plan of coremltools, played from what was recorded of one.

The records are lines of 751K/Apple-Neural-Engine-Microarchitecture-Study-M6@5cb462b
data/03_compile/opdispatch/plan_ctx_cpune.tsv (M4, macOS 27.0.1): type, name, preferred device,
devices that take the op, share of the estimated cost.
"""

import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

from _networks import half, save
from _patience import HANGING
from coremltools.converters.mil import Builder as mb
from coremltools.models import compute_device, compute_plan
from mlprogram import machine
from mlprogram.ane.mac import plan as coreml_plan
from mlprogram.ane.mac.plan import CoreMLPlan, PlannedOp
from mlprogram.ane.mac.probe import Probe
from mlprogram.ane.placement import place
import pytest

BAND_PART = """\
ios18.linear wrap_in0_0_lin ANE CPU,ANE 0.2216
ios18.relu wrap_in0_0_relu ANE CPU,ANE 0.0201
ios18.linear wrap_in0_1_lin ANE CPU,ANE 0.2216
ios18.relu wrap_in0_1_relu ANE CPU,ANE 0.0201
band_part band_part_0 CPU CPU 0.0330
ios18.linear wrap_out_0_lin ANE CPU,ANE 0.2216
ios18.relu wrap_out_0_relu ANE CPU,ANE 0.0201
ios18.linear wrap_out_1_lin ANE CPU,ANE 0.2216
ios18.relu wrap_out_1_relu ANE CPU,ANE 0.0201"""

KINDS = {
    "ANE": compute_device.MLNeuralEngineComputeDevice,
    "CPU": compute_device.MLCPUComputeDevice,
}


class Recorded:
    """`MLComputePlan` as coremltools' own records, from lines of a plan that was written down.

    Only the binding to Core ML, which no other system has, is left out.
    """

    def __init__(self, lines: str, function: str = "main"):
        rows = [line.split() for line in lines.splitlines()]
        self._rows = {name: (kind, takes.split(","), share) for _, name, kind, takes, share in rows}
        types = [("const", "weight_0")] + [(type_, name) for type_, name, *_ in rows]
        operations = [self._operation(type_, name) for type_, name in types]
        block = compute_plan.MLModelStructureProgramBlock([], operations, [])
        body = compute_plan.MLModelStructureProgramFunction([], block)
        program = compute_plan.MLModelStructureProgram({function: body})
        self.model_structure = compute_plan.MLModelStructure(None, program, None)

    @staticmethod
    def _operation(type_: str, name: str):
        value = compute_plan.MLModelStructureProgramNamedValueType(name, None)
        return compute_plan.MLModelStructureProgramOperation({}, type_, [value], [], None)

    def get_compute_device_usage_for_mlprogram_operation(self, operation):
        row = self._rows.get(operation.outputs[0].name)
        if row is None:  # Core ML names no device for a constant
            return None
        devices = [object.__new__(KINDS[kind]) for kind in (row[0], *row[1])]
        return compute_plan.MLComputePlanDeviceUsage(devices[0], devices[1:])

    def get_estimated_cost_for_mlprogram_operation(self, operation):
        row = self._rows.get(operation.outputs[0].name)
        return row and compute_plan.MLComputePlanCost(float(row[2]))


@pytest.fixture
def placement(tmp_path):
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

    return place(save(tmp_path / "band_part.mlpackage", network, (1, 128, 128)))


def recorded(tmp_path, lines: str = BAND_PART) -> list[dict]:
    """The ops that the child's probe reads off a plan."""
    probe = Probe({"package": "x.mlpackage", "function": "main"}, tmp_path)
    load = SimpleNamespace(load_from_path=lambda path, compute_units: Recorded(lines))
    with patch.object(compute_plan, "MLComputePlan", load):
        return [op.fields() for op in probe.plan("x.mlmodelc", coreml_plan.UNITS)]


def test_a_recorded_plan_beside_the_prediction(placement, tmp_path):
    """The one graph of the source whose choice is not the shortest path: four ops stay behind."""
    plan = CoreMLPlan(tuple(PlannedOp(**op) for op in recorded(tmp_path)))
    assert plan.devices(placement) == ["ANE"] * 4 + ["CPU"] + ["ANE"] * 4
    assert placement.devices == ["ANE"] * 4 + ["CPU"] * 5
    assert plan.agreement(placement) == (5, 9)
    assert plan.line(placement) == "actual: 8 of 9 ops planned on the ANE; 5 of 9 as predicted"
    facts = plan.facts(placement)
    assert facts["measured"] and facts["costs"]["band_part_0"] == 0.033
    assert "weight_0" not in facts["devices"], "a constant has no device"


def test_off_a_mac_one_line_says_why(placement, monkeypatch):
    monkeypatch.setattr(machine, "macos_version", lambda: None)
    plan = coreml_plan.read_plan(placement.package, "main")
    assert plan.line(placement) == "actual: unmeasured (needs a Mac)"
    assert plan.facts(placement) == {"measured": False, "reason": "needs a Mac"}


def test_a_child_tells_the_plan(placement, tmp_path):
    """The parent's side, with a child that writes what was recorded."""
    events = tmp_path / "told.jsonl"
    events.write_text(json.dumps({"step": "plan", "ops": recorded(tmp_path)}) + "\n")
    tell = f"import os, shutil; shutil.copy({str(events)!r}, os.environ['MLPROGRAM_FOLDER'] + NAME)"
    tell = tell.replace("NAME", "'/events.jsonl'")
    plan = coreml_plan.ask(placement.package, "main", [sys.executable, "-c", tell])
    assert plan.agreement(placement) == (5, 9)


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
        placement.package, "main", child, timeout=2.0 if "sleep" in script else HANGING
    )
    assert plan.reason == f"Core ML did not answer: {reason}"
