"""Core ML's plan of a function, op by op: what it comes to, and how it agrees with a prediction.

`MLComputePlan` says for each op which device it prefers, which ones could take it, and its share of
the estimated time. It says nothing of constants, which nobody runs: counted as ops, they make a
program that runs on the engine whole look like one that runs there by a third.

Asking for a plan compiles for the ANE, which took 212 to 229 s and 11.7 GB for one 16 x 16
convolution (751K's study of the M6, `notes/coreml_dispatch.md`): a child process asks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

from ane_book import device
from ane_book.evidence.mac import child

if TYPE_CHECKING:  # the child needs none of it
    from ane_book.evidence.placement.placed import Placement

__all__ = ["ANE", "DEVICES", "CoreMLPlan", "PlannedOp", "ask", "read_plan"]

ANE = "ane"
#: Classes of `coremltools.models.compute_device` by our names.
DEVICES = {
    "MLNeuralEngineComputeDevice": ANE,
    "MLGPUComputeDevice": "gpu",
    "MLCPUComputeDevice": "cpu",
}
UNITS = "CPU_AND_NE"  # as in the graphs whose estimates are published
TIMEOUT = 1800.0  # seconds


@dataclass(frozen=True)
class PlannedOp:
    """One op. preferred: "ane", "gpu", "cpu" or None where Core ML does not say. supported: the
    devices that could take it. cost: its share of the estimated time, 0 to 1, or None."""

    name: str
    type: str
    preferred: str | None
    supported: tuple[str, ...] = ()
    cost: float | None = None

    def fields(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class CoreMLPlan:
    """What Core ML planned. ops: all of the function's, with constants. reason: why there is no
    plan, "" where there is one."""

    ops: tuple[PlannedOp, ...] = ()
    reason: str = ""

    @classmethod
    def from_outcome(cls, outcome: child.Outcome) -> "CoreMLPlan":
        """The plan that a child wrote down; without ops where it came to none."""
        return cls(
            tuple(PlannedOp(**op) for event in outcome.find("plan") for op in event["ops"])
        )

    @property
    def running(self) -> list[PlannedOp]:
        """The ops that run and have a device: all but constants."""
        return [op for op in self.ops if op.type.split(".")[-1] != "const" and op.preferred]

    def by_device(self) -> dict[str, dict[str, float]]:
        """Ops and share of the estimated time of each device, among the ops that run.

        Where no op has a cost, each counts alike.
        """
        ops = self.running
        total = sum(op.cost or 0.0 for op in ops)
        devices: dict[str, dict[str, float]] = {}
        for op in ops:
            entry = devices.setdefault(str(op.preferred), {"ops": 0, "cost": 0.0})
            entry["ops"] += 1
            entry["cost"] += (op.cost or 0.0) / total if total else 1 / len(ops)
        return devices

    @property
    def ane_share(self) -> float | None:
        """The share of the estimated time that is planned on the engine; None if nothing is."""
        devices = self.by_device()
        return devices.get(ANE, {"cost": 0.0})["cost"] if devices else None

    def outside(self, most: int = 5) -> list[str]:
        """The dearest ops that are planned elsewhere, in words."""
        elsewhere = [op for op in self.running if op.preferred != ANE]
        elsewhere.sort(key=lambda op: -(op.cost or 0.0))
        return [
            f"{op.type.split('.')[-1]} {op.name!r} on the {str(op.preferred).upper()}"
            + ("" if ANE in op.supported else ", which the ANE does not take")
            for op in elsewhere[:most]
        ]

    # Beside a prediction, whose devices are "ANE" and "CPU"; ops are known by their first output.

    def devices(self, placement: "Placement") -> list[str]:
        """The planned device of each predicted op, "" where Core ML names none."""
        planned = {op.name: str(op.preferred).upper() for op in self.running}
        return [planned.get(placed.op.name, "") for placed in placement.placed]

    def agreement(self, placement: "Placement") -> tuple[int, int]:
        """Ops planned as predicted, and all that are planned and predicted for sure."""
        pairs = zip(self.devices(placement), placement.devices, strict=True)
        same = [
            (planned == "ANE") == (predicted == "ANE")
            for planned, predicted in pairs
            if planned and predicted != "depends"
        ]
        return sum(same), len(same)

    def line(self, placement: "Placement") -> str:
        """One line for a report."""
        if self.reason:
            return f"actual: unmeasured ({self.reason})"
        same, of = self.agreement(placement)
        planned = [device for device in self.devices(placement) if device]
        return (
            f"actual: {planned.count('ANE'):,} of {len(planned):,} ops planned on the ANE; "
            f"{same:,} of {of:,} as predicted"
        )

    def facts(self, placement: "Placement") -> dict:
        """As plain JSON values."""
        if self.reason:
            return {"measured": False, "reason": self.reason}
        same, of = self.agreement(placement)
        return {
            "measured": True,
            "as_predicted": same,
            "compared": of,
            "devices": {op.name: str(op.preferred).upper() for op in self.running},
            "costs": {op.name: op.cost for op in self.running if op.cost is not None},
        }


def read_plan(package: str | Path, function: str) -> CoreMLPlan:
    """Core ML's plan of a function for CPU and Neural Engine, or why there is none."""
    engine, reason = device.neural_engine()
    if device.macos_version() is None:
        reason = "needs a Mac"
    return ask(package, function) if engine else CoreMLPlan(reason=reason)


def ask(
    package: str | Path,
    function: str,
    command: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> CoreMLPlan:
    """What a child finds out. command: what it runs in place of the probe."""
    request = {"what": "plan", "package": str(package), "function": function, "units": UNITS}
    with tempfile.TemporaryDirectory(prefix="ane-book-") as folder:
        outcome = child.ask(request, Path(folder), timeout, command=command)
    if list(outcome.find("plan")):
        return CoreMLPlan.from_outcome(outcome)
    how = {"exit": f"exit code {outcome.code}", "timeout": "out of time", "memory": "out of memory"}
    return CoreMLPlan(reason=f"Core ML did not answer: {how[outcome.ended]} at {outcome.reached}")
