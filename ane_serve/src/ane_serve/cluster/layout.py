"""Which layers go to which machine, and what goes from one to the next.

A bundle is cut between packages of different layers: between its shards, or, where each expert is a
program of its own, between layers. A machine's time for a token is the time to read its weights, so
ranges get about as many bytes each.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby

from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Part


def cut(costs: Sequence[int], machines: int, first: int = 0) -> list[range]:
    """Cut units of these costs into a range for each machine, or for each unit if those are fewer.

    The largest cost of a range is as small as it can be. first: what the first machine has to do
    beside its range, such as the head.
    """
    sums, machines = [0, *accumulate(costs)], min(machines, len(costs))
    best = [(first + total, 0) for total in sums]  # of the first n units: largest cost, last range
    ways = [best]
    for used in range(1, machines):
        best = [
            min(((max(best[i][0], sums[n] - sums[i]), i) for i in range(used, n)), default=(0, 0))
            for n in range(len(sums))
        ]
        ways.append(best)
    ranges, stop = [], len(costs)
    for best in reversed(ways):
        start = best[stop][1]
        ranges.append(range(start, stop))
        stop = start
    return ranges[::-1]


def units(manifest: Manifest) -> list[list[Part]]:
    """The packages before the head, those of the same layers together."""
    parts = [part for part in manifest.packages if part.part != "head"]
    return [list(group) for _, group in groupby(parts, lambda part: part.layers)]


def sizes(manifest: Manifest) -> tuple[list[int], int]:
    """Bytes of the packages of every unit, and of the head."""
    bytes_of: dict[str, int] = {}
    for name, size in manifest.files.items():
        package = name.split("/")[0]
        bytes_of[package] = bytes_of.get(package, 0) + size

    def total(parts: list[Part]) -> int:
        return sum(bytes_of[package] for package in {part.package for part in parts})

    return [total(parts) for parts in units(manifest)], total(manifest.head)


def crossing(manifest: Manifest, unit: int) -> dict[str, int]:
    """The values (1, rows, 1, T) that go into a unit from those before it: name -> rows.

    With the number of units as `unit`, those that go into the head.
    """
    parts = units(manifest)
    rows = {"hidden": manifest.embedding.shape[1]}
    for part in (part for own in parts[:unit] for part in own):
        rows |= _outputs(part)
    needed: set[str] = set()
    made: set[str] = set()
    for part in (part for own in parts[unit:] for part in own):
        needed |= _inputs(part) - made
        made |= _outputs(part).keys()
    needed |= {"hidden"} - made
    return {name: count for name, count in rows.items() if name in needed}


def _outputs(part: Part) -> dict[str, int]:
    """The outputs of a part that other parts take: name -> rows."""
    outputs = next(iter(part.functions.values())).outputs.items()
    named = {"hidden" if name == "hidden_out" else name: type_.shape for name, type_ in outputs}
    return {name: shape[1] for name, shape in named.items() if not name.startswith("new_")}


def _inputs(part: Part) -> set[str]:
    """The inputs of a part, from the host or from other parts; caches are left out."""
    function = next(iter(part.functions.values()))
    if part.part == "experts":
        return {"x", "gates"}  # of which each takes its own row
    return {name for name in function.inputs if f"new_{name}" not in function.outputs}
