"""Core ML's plan of a function, op by op: a summary, and a comparison with a prediction.

For each op `MLComputePlan` has the preferred device, the devices that could take it, and its share
of the estimated time. Constants have none of these, since they do not run; counted as ops, they
would make a program that runs on the engine completely look like one that runs there to a third.

Reading a plan compiles for the ANE, which took 212 to 229 s and 11.7 GB for one 16 x 16 convolution
(751K's study of the M6, `notes/coreml_dispatch.md`), so a child process does it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

from mlprogram import machine
from mlprogram.ane.mac import child

if TYPE_CHECKING:  # the child needs none of it
    from mlprogram.ane.placement.placed import Placement


ANE = "ane"
#: Classes of `coremltools.models.compute_device` by our names.
DEVICES = {
    "MLNeuralEngineComputeDevice": ANE,
    "MLGPUComputeDevice": "gpu",
    "MLCPUComputeDevice": "cpu",
}
UNITS = "CPU_AND_NE"  # as for the graphs whose estimates are published
TIMEOUT = 1800.0  # seconds


@dataclass(frozen=True)
class PlannedOp:
    """The plan of one op. preferred: "ane", "gpu", "cpu", or None if Core ML does not say.
    supported: the devices that could take it. cost: its share of the estimated time, or None."""

    name: str
    type: str
    preferred: str | None
    supported: tuple[str, ...] = ()
    cost: float | None = None

    @property
    def device(self) -> str:
        """The preferred device as predictions and reports spell it: "ANE"; "" if there is none."""
        return (self.preferred or "").upper()


@dataclass(frozen=True)
class CoreMLPlan:
    """The plan of a function. ops: all of them, with constants. reason: why there is no plan, or
    ""."""

    ops: tuple[PlannedOp, ...] = ()
    reason: str = ""

    @classmethod
    def from_outcome(cls, outcome: child.Outcome) -> "CoreMLPlan":
        """The plan that a child reported; without ops if it did not get that far."""
        return cls(
            tuple(PlannedOp(**op) for event in outcome.find("plan") for op in event["ops"])
        )

    @property
    def running(self) -> list[PlannedOp]:
        """The ops that run and have a device: all but constants."""
        return [op for op in self.ops if op.type.split(".")[-1] != "const" and op.preferred]

    def by_device(self) -> dict[str, dict[str, float]]:
        """For each device how many ops run there, and their share of the estimated time.

        If no op has a cost, all count the same.
        """
        ops = self.running
        total = sum(op.cost or 0.0 for op in ops)
        devices: dict[str, dict[str, float]] = {}
        for op in ops:
            entry = devices.setdefault(op.preferred or "", {"ops": 0, "cost": 0.0})
            entry["ops"] += 1
            entry["cost"] += (op.cost or 0.0) / total if total else 1 / len(ops)
        return devices

    @property
    def ane_share(self) -> float | None:
        """The share of the estimated time that is planned on the engine; None if nothing is."""
        devices = self.by_device()
        return devices.get(ANE, {"cost": 0.0})["cost"] if devices else None

    def outside(self, most: int = 5) -> list[str]:
        """The most expensive ops that are planned elsewhere, in words."""
        elsewhere = [op for op in self.running if op.preferred != ANE]
        elsewhere.sort(key=lambda op: -(op.cost or 0.0))
        return [
            f"{op.type.split('.')[-1]} {op.name!r} on the {op.device}"
            + ("" if ANE in op.supported else ", which the ANE does not take")
            for op in elsewhere[:most]
        ]

    # Compared with a prediction, whose devices are "ANE" and "CPU"; ops match by first output.

    def devices(self, placement: "Placement") -> list[str]:
        """The planned device of each predicted op, or "" if Core ML names none."""
        planned = {op.name: op.device for op in self.running}
        return [planned.get(placed.op.name, "") for placed in placement.placed]

    def agreement(self, placement: "Placement") -> tuple[int, int]:
        """How many ops are planned as predicted, of how many with a plan and a sure prediction."""
        pairs = zip(self.devices(placement), placement.devices, strict=True)
        same = [
            (planned == "ANE") == (predicted == "ANE")
            for planned, predicted in pairs
            if planned and predicted != "depends"
        ]
        return sum(same), len(same)

    def line(self, placement: "Placement") -> str:
        """A sentence that compares the plan with the prediction."""
        if self.reason:
            return f"actual: unmeasured ({self.reason})"
        same, of = self.agreement(placement)
        planned = [device for device in self.devices(placement) if device]
        return (
            f"actual: {planned.count('ANE'):,} of {len(planned):,} ops planned on the ANE; "
            f"{same:,} of {of:,} as predicted"
        )

    def to_json(self, placement: "Placement") -> dict:
        """As plain JSON values."""
        if self.reason:
            return {"measured": False, "reason": self.reason}
        same, of = self.agreement(placement)
        return {
            "measured": True,
            "as_predicted": same,
            "compared": of,
            "devices": {op.name: op.device for op in self.running},
            "costs": {op.name: op.cost for op in self.running if op.cost is not None},
        }


def read_plan(package: str | Path, function: str) -> CoreMLPlan:
    """Read Core ML's plan of a function for CPU and Neural Engine, or say why there is none."""
    engine, reason = machine.neural_engine()
    if machine.macos_version() is None:
        reason = "needs a Mac"
    return ask(package, function) if engine else CoreMLPlan(reason=reason)


def ask(
    package: str | Path,
    function: str,
    command: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> CoreMLPlan:
    """Have a child read the plan. command: what it runs instead of the probe."""
    request = {"what": "plan", "package": str(package), "function": function, "units": UNITS}
    with tempfile.TemporaryDirectory(prefix="mlprogram-") as folder:
        outcome = child.ask(request, Path(folder), timeout, command=command)
    if list(outcome.find("plan")):
        return CoreMLPlan.from_outcome(outcome)
    how = {"exit": f"exit code {outcome.code}", "timeout": "out of time", "memory": "out of memory"}
    return CoreMLPlan(reason=f"Core ML did not answer: {how[outcome.ended]} at {outcome.reached}")
