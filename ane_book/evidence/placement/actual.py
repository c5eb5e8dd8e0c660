"""What Core ML itself plans, on a Mac: `MLComputePlan`, held beside a prediction.

Off a Mac nothing can be read, and that is what is said. Asking for a plan compiles for the ANE,
which took 212 to 229 s and 11.7 GB for one 16 x 16 convolution (751K's study of the M6,
`notes/coreml_dispatch.md`); it is done in this process and has no time limit.

Reference: coremltools `models/compute_plan.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING, Protocol

from ane_book import device
from ane_book.evidence.placement.placed import Placement

if TYPE_CHECKING:
    from coremltools.models.compute_plan import MLComputePlan

__all__ = ["Plan", "from_compute_plan", "read_plan"]

#: coremltools' classes of devices, and what they are called here.
DEVICES = {
    "MLNeuralEngineComputeDevice": "ANE",
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
}


class Operation(Protocol):
    """What is read of an op in `MLModelStructureProgram`."""

    operator_name: str
    outputs: list
    blocks: list


@dataclass(frozen=True)
class Plan:
    """preferred: the device by the name of an op's first output; reason: why there is none."""

    preferred: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # shares of the estimated cost
    reason: str = ""

    def devices(self, placement: Placement) -> list[str]:
        """The planned device of each op, "" where Core ML names none."""
        return [self.preferred.get(placed.op.name, "") for placed in placement.placed]

    def agreement(self, placement: Placement) -> tuple[int, int]:
        """Ops planned as predicted, and all that are planned and predicted for sure."""
        both = [
            (planned == "ANE") == (predicted == "ANE")
            for planned, predicted in zip(self.devices(placement), placement.devices, strict=True)
            if planned and predicted != "depends"
        ]
        return sum(both), len(both)

    def line(self, placement: Placement) -> str:
        """One line for a report."""
        if self.reason:
            return f"actual: unmeasured ({self.reason})"
        same, of = self.agreement(placement)
        planned = [found for found in self.devices(placement) if found]
        on_ane = planned.count("ANE")
        return (
            f"actual: {on_ane:,} of {len(planned):,} ops planned on the ANE; "
            f"{same:,} of {of:,} as predicted"
        )

    def facts(self, placement: Placement) -> dict:
        """As plain JSON values."""
        if self.reason:
            return {"measured": False, "reason": self.reason}
        same, of = self.agreement(placement)
        return {
            "measured": True,
            "as_predicted": same,
            "compared": of,
            "devices": self.preferred,
            "cost": self.weights,
        }


def read_plan(package: str | Path, function: str) -> Plan:
    """The plan of a function for CPU and Neural Engine; off a Mac one that says why not."""
    if device.macos_version() is None:
        return Plan(reason="needs a Mac")
    if not device.CAN_PREDICT:
        return Plan(reason=device.CAN_PREDICT_REASON)
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    path = Path(package)
    with tempfile.TemporaryDirectory() as folder:
        compiled = path
        if path.suffix != ".mlmodelc":
            compiled = Path(folder, f"{path.stem}.mlmodelc")
            ct.models.utils.compile_model(str(path), str(compiled))
        plan = MLComputePlan.load_from_path(str(compiled), ct.ComputeUnit.CPU_AND_NE)
        return from_compute_plan(plan, function)


def from_compute_plan(plan: "MLComputePlan", function: str) -> Plan:
    """What coremltools' plan says of one function."""
    program = plan.model_structure.program
    if program is None or function not in program.functions:
        return Plan(reason=f"Core ML's plan has no program with the function {function!r}")
    preferred, weights = {}, {}
    for operation in _operations(program.functions[function].block):
        usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
        cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
        name = operation.outputs[0].name if operation.outputs else operation.operator_name
        if usage is not None:
            kind = type(usage.preferred_compute_device).__name__
            preferred[name] = DEVICES.get(kind, kind)
        if cost is not None:
            weights[name] = cost.weight
    return Plan(preferred, weights)


def _operations(block) -> Iterator[Operation]:
    """Every op of a block but its constants, those of nested blocks behind their op."""
    for operation in block.operations:
        if operation.operator_name.split(".")[-1] != "const":
            yield operation
        for nested in operation.blocks:
            yield from _operations(nested)
