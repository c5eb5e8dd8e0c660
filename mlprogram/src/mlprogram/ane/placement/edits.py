"""Suggest edits of a graph that would move work to the ANE, each tried on the same path search.

Ops that the ANE refuses for the same reason make one edit: the path is searched again as if the ANE
took them, and if that moves work to the ANE, the edit is suggested. A program that saves less than
a launch and an output cost is too small by itself; then the suggestion is how many to merge.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from mlprogram.ane.placement.path import ANE, LAUNCH, OUTPUT
from mlprogram.ane.placement.placed import Placed, Placement, reading

NOTHING = 0.02  # moving less than this share of all arithmetic is no change

#: The claim for which an op is refused -> what to do.
ADVICE = {
    "argmax-integer": "return the scores, and take the largest on the host",
    "axis-habit": "split it into parts of at most 16,384",
    "axis-most": "split the axis, and join the parts on the host",
    "conv-height": "split the kernel into shorter ones whose results are added",
    "conv-square": "split the kernel into smaller ones whose results are added",
    "conv-width": "split the kernel into narrower ones whose results are added",
    "flexible-cpu": "give the input a fixed shape, one function for each size",
    "fp32-ops": "convert in half precision",
    "fused-attention": "write attention as two products and a softmax",
    "gather-computed": "look the rows up on the host, and give them as an input",
    "int32-ops": "compute indices on the host, and give the result in half precision",
    "matmul-depth": "split the sum into parts that are added",
    "max-pool": "pool twice with smaller windows",
    "ops-refused": "replace the op, or do it on the host",
    "program-2gb": "cut the program, or spread its weights over several files",
    "rank-most": "join axes before the op",
    "scale-per-block": "quantise with one scale for each output channel",
    "slice-dynamic": "slice at constant positions, or give the slice as an input",
    "state-writes": "keep the cache on the host: read-only input, new rows as output",
    "topk": "return the scores, and choose on the host",
}


@dataclass(frozen=True)
class Edit:
    """An edit and its effect: the share of the arithmetic on the ANE, before and after."""

    what: str
    ops: tuple[str, ...]
    before: float
    after: float

    def to_json(self) -> dict:
        return {"what": self.what, "ops": [*self.ops], "before": self.before, "after": self.after}


def edits(placement: Placement) -> list[Edit]:
    """The edits that move work to the ANE, the one of fewest ops first."""
    worst = placement.worst.work
    if worst > 1 - NOTHING:
        return []
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, each in enumerate(placement.placed):
        if each.support.ane is not True:
            groups[each.support.reason, each.support.claim].append(index)
    found = []
    for (reason, claim), indices in groups.items():
        after = reading(placement.placed, best=False, also=frozenset(indices)).work
        if after > worst + NOTHING:
            names = tuple(placement.placed[i].op.name for i in indices)
            advice = "; ".join(ADVICE[name] for name in claim.split() if name in ADVICE)
            advice = advice or "look at these ops on a Mac"
            found.append(Edit(f"{reason}: {advice}", names, worst, after))
    found.sort(key=lambda edit: len(edit.ops))
    return found or _larger(placement, worst)


def merged(placements: Sequence[Placement]) -> list[str]:
    """A sentence for each function whose programs stay on the CPU, but would not if merged."""
    apart: dict[str, list[float]] = defaultdict(list)
    for placement in placements:
        if placement.verdict == "CPU":
            apart[placement.function].append(sum(map(_saved, placement.placed)))
    whole = LAUNCH + OUTPUT
    return [
        f"{name}: {len(saved):,} programs stay on the CPU, each too small; merged into one they "
        f"save {sum(saved):.3g} ms on the ANE, and a segment costs {whole}"
        for name, saved in apart.items()
        if len(saved) > 1 and sum(saved) > whole
    ]


def _larger(placement: Placement, before: float) -> list[Edit]:
    """An edit that says how many programs like this one would have to be merged, if any."""
    saved = sum(map(_saved, placement.placed))
    if not 0 < saved < LAUNCH + OUTPUT:
        return []
    times = ceil((LAUNCH + OUTPUT) / saved)
    what = (
        f"too little work: the ANE saves {saved:.3g} ms, and a segment costs {LAUNCH + OUTPUT}; "
        f"{times:,} times as much in one program (merged, or more positions a call) would pay"
    )
    return [Edit(what, (), before, 1.0)]


def _saved(placed: Placed) -> float:
    """The least time in ms that the ANE saves on an op."""
    if placed.support.ane is not True:
        return 0.0
    cpu = min((low for backend, (low, _) in placed.times.items() if backend != ANE), default=inf)
    return cpu - placed.times[ANE][1]
