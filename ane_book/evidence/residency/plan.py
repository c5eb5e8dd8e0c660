"""Core ML's plan of a function, op by op, and what it comes to.

`MLComputePlan` says for each op which device it prefers, which ones could take it, and its share of
the estimated time. It says nothing of constants, which nobody runs: counted as ops, they make a
program that runs on the engine whole look like one that runs there by a third.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

__all__ = ["ANE", "DEVICES", "PlannedOp", "by_device", "outside", "share"]

ANE = "ane"
#: Classes of `coremltools.models.compute_device` by our names.
DEVICES = {
    "MLNeuralEngineComputeDevice": ANE,
    "MLGPUComputeDevice": "gpu",
    "MLCPUComputeDevice": "cpu",
}


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


def counted(ops: Iterable[PlannedOp]) -> list[PlannedOp]:
    """The ops that run: all but constants."""
    return [op for op in ops if op.type.split(".")[-1] != "const" and op.preferred is not None]


def by_device(ops: Iterable[PlannedOp]) -> dict[str, dict[str, float]]:
    """Ops and share of the estimated time of each device, among the ops that are planned.

    Where no op has a cost, each counts alike.
    """
    ops = counted(ops)
    known = sum(op.cost or 0.0 for op in ops)
    found: dict[str, dict[str, float]] = {}
    for op in ops:
        entry = found.setdefault(op.preferred, {"ops": 0, "cost": 0.0})
        entry["ops"] += 1
        entry["cost"] += (op.cost or 0.0) / known if known else 1 / len(ops)
    return found


def share(ops: Iterable[PlannedOp]) -> float | None:
    """The share of the estimated time that is planned on the engine; None where nothing is said."""
    found = by_device(ops)
    return found.get(ANE, {"cost": 0.0})["cost"] if found else None


def outside(ops: Iterable[PlannedOp], most: int = 5) -> list[str]:
    """The dearest ops that are planned elsewhere, in words."""
    elsewhere = [op for op in counted(ops) if op.preferred != ANE]
    elsewhere.sort(key=lambda op: -(op.cost or 0.0))
    return [
        f"{op.type.split('.')[-1]} {op.name!r} on the {op.preferred.upper()}"
        + ("" if ANE in op.supported else ", which the ANE does not take")
        for op in elsewhere[:most]
    ]
