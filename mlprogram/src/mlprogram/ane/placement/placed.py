"""Predict where Core ML runs each op of a package, from support, estimates and path.

Two things may be unknown: whether the ANE takes an op, where sources are silent or conflict; and
the time of an op of a size that nobody measured. So the path is searched for two readings of the
unknowns, the best and the worst for the ANE. If they agree, that is the prediction; if not, the
answer is "depends", and the report says on what. What is said of a whole program (the size of its
weight file, its states) is said of each of its ops.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mlprogram.ane.laws.rules.weights import largest_file
from mlprogram.ane.placement.estimator import Estimator, Range, work
from mlprogram.ane.placement.graph import GraphOp, read_ops
from mlprogram.ane.placement.path import ANE, segments, shortest
from mlprogram.ane.placement.path import Path as Route
from mlprogram.ane.placement.support import Support, support, table, whole_program
from mlprogram.errors import InvalidInput
from mlprogram.package.function import Function
from mlprogram.package.reader import Package

UNITS = "cpuAndNeuralEngine"  # what predictions hold for: of the GPU no estimate is published
#: Ops that only move data: they do not count in the share of arithmetic.
MOVES = frozenset([
    "batch_to_space", "cast", "concat", "depth_to_space", "expand_dims", "fill_like", "gather",
    "gather_along_axis", "gather_nd", "identity", "pad", "pixel_shuffle", "pixel_unshuffle",
    "read_state", "reshape", "reverse", "scatter", "scatter_along_axis", "scatter_nd",
    "slice_by_index", "slice_by_size", "slice_update", "space_to_batch", "space_to_depth", "split",
    "squeeze", "stack", "tile", "transpose", "write_state", "coreml_update_state",
])  # fmt: skip


@dataclass(frozen=True)
class Placed:
    """An op, whether the ANE takes it, and its estimated (least, most) ms by backend."""

    op: GraphOp
    support: Support
    times: dict[str, Range]
    work: float  # floating point operations; 0 for an op that only moves data


@dataclass(frozen=True)
class Reading:
    """One reading of what is not known, and the path that follows from it."""

    route: Route
    placed: Sequence[Placed]

    @cached_property
    def on_ane(self) -> list[bool]:
        return [backend == ANE for backend in self.route.backends]

    @cached_property
    def segments(self) -> list[tuple[str, int, int]]:
        """Runs of ops on one device: ("ane" or "cpu", first, end)."""
        return segments(self.route.backends)

    def share(self, weight) -> float:
        """The share of the ops on the ANE, weighted by `weight`, 0 to 1."""
        total = sum(map(weight, self.placed))
        here = sum(weight(p) for p, on in zip(self.placed, self.on_ane, strict=True) if on)
        return here / total if total else 0.0

    @property
    def work(self) -> float:
        """The share of the arithmetic on the ANE, 0 to 1."""
        return self.share(lambda placed: placed.work)

    @property
    def weights(self) -> float:
        """The share of the weight bytes on the ANE, 0 to 1."""
        return self.share(lambda placed: placed.op.weight_bytes)

    @property
    def partitions(self) -> int:
        """The number of segments on the ANE."""
        return sum(device == ANE for device, _, _ in self.segments)

    def to_json(self) -> dict:
        return {
            "milliseconds": self.route.cost,
            "ops_on_ane": sum(self.on_ane),
            "partitions_on_ane": self.partitions,
            "segments": [
                {"device": device, "first": self.placed[a].op.name, "ops": b - a}
                for device, a, b in self.segments
            ],
            "share_of_ops": self.share(lambda placed: 1),
            "share_of_weight_bytes": self.weights,
            "share_of_operations": self.work,
        }


@dataclass(frozen=True)
class Placement:
    """The prediction for one function of a package.

    best, worst: the two readings of what is not known, the best and the worst for the ANE.
    """

    package: str
    function: str
    chip: str
    placed: tuple[Placed, ...]
    best: Reading
    worst: Reading

    @property
    def devices(self) -> list[str]:
        """For each op "ANE", "CPU", or "depends" if the two readings differ."""
        both = zip(self.best.on_ane, self.worst.on_ane, strict=True)
        return ["depends" if a != b else "ANE" if a else "CPU" for a, b in both]

    @property
    def verdict(self) -> str:
        """Where most of the arithmetic runs in both readings: "ANE", "CPU", or "depends"."""
        words = {"ANE" if each.work > 0.5 else "CPU" for each in (self.best, self.worst)}
        return words.pop() if len(words) == 1 else "depends"

    @property
    def open(self) -> dict[str, int]:
        """The reasons why the readings may differ, each with the number of its ops."""
        counts = Counter(p.support.reason for p in self.placed if p.support.ane is None)
        ranged = sum(any(low < high for low, high in p.times.values()) for p in self.placed)
        borrowed = "figures" in table()["chips"].get(self.chip, {})
        if ranged and borrowed:
            counts["the estimates are another chip's"] = ranged
        elif ranged:
            counts["the estimate of an op of this size or shape was never seen"] = ranged
        return dict(counts.most_common())

    @property
    def stands_on(self) -> str:
        """The chip whose figures the prediction stands on, in words."""
        return table()["chips"].get(self.chip, {}).get("stands_on", f"figures of {self.chip}")

    def to_json(self) -> dict:
        """The prediction in plain JSON values."""
        return {
            "package": self.package,
            "function": self.function,
            "chip": self.chip,
            "stands_on": self.stands_on,
            "compute_units": UNITS,
            "verdict": self.verdict,
            "best": self.best.to_json(),
            "worst": self.worst.to_json(),
            "open": self.open,
            "ops": [
                {
                    "name": each.op.name,
                    "type": each.op.type,
                    "device": device,
                    "ane_takes_it": each.support.word,
                    "reason": each.support.reason,
                    "claim": each.support.claim,
                    "milliseconds": {b: [*times] for b, times in each.times.items()},
                    "operations": each.work,
                    "weight_bytes": each.op.weight_bytes,
                }
                for each, device in zip(self.placed, self.devices, strict=True)
            ],
        }


def place(
    package: str | Path | Package, chip: str = "m4", function: str | None = None
) -> Placement:
    """Predict where Core ML runs the ops of a function, by default the package's default one.

    Raises InvalidPackage, and InvalidInput for an unknown chip or function.
    """
    opened = package if isinstance(package, Package) else Package(package, weights=False)
    (chosen,) = find_functions(opened, function or opened.default_function)
    estimator = Estimator.of(chip)
    sizes = [path.stat().st_size for path in opened.weight_files]
    largest = max([largest_file(opened), *sizes])
    ops = read_ops(opened, chosen)
    return place_ops(ops, estimator, str(opened.path), chosen.name, weight_file=largest)


def find_functions(package: Package, name: str | None = None) -> list[Function]:
    """The function with this name, or all of them if None; raises InvalidInput if there is none."""
    if name is None:
        return list(package.functions.values())
    if name not in package.functions:
        known = ", ".join(sorted(package.functions))
        raise InvalidInput(f"{package.path} has no function {name!r}; it has {known}")
    return [package.functions[name]]


def place_ops(
    ops: Sequence[GraphOp],
    estimator: Estimator,
    package: str = "",
    function: str = "main",
    weight_file: int = 0,
    supported: Callable[[GraphOp, str], Support] = support,
) -> Placement:
    """Predict where the ops run, given in the order of the file.

    weight_file: the bytes of the package's largest one. supported: what says whether the ANE of a
    chip takes an op.
    """
    chip, whole = estimator.chip, whole_program(ops, weight_file)
    placed = tuple(
        Placed(op, supported(op, chip).within(whole), estimator.times(op), arithmetic(op))
        for op in ops
    )
    best, worst = (reading(placed, best) for best in (True, False))
    return Placement(package, function, chip, placed, best, worst)


def arithmetic(op: GraphOp) -> float:
    """Floating point operations, as the segmenter counts them."""
    return 0.0 if op.type in MOVES else work(op).flops


def reading(placed: Sequence[Placed], best: bool, also: frozenset[int] = frozenset()) -> Reading:
    """Find the path with the unknowns in favour of the ANE (`best`) or against it.

    also: indices of ops that the ANE is assumed to take although it does not, for `edits`.
    """
    estimates = []
    for index, each in enumerate(placed):
        taken = each.support.ane is True or (best and each.support.ane is None) or index in also
        times = {
            backend: (low if best == (backend == ANE) else high)
            for backend, (low, high) in each.times.items()
            if taken or backend != ANE
        }
        estimates.append(times)
    return Reading(shortest(estimates), placed)
