"""Assign a backend to each op by a shortest path, as the segmenter in Core ML's E5 compiler does.

Every op has an estimated time on each backend that takes it. The ops form a chain in the order of
the file, and the assignment of least total time wins, where

    a segment that begins on the ANE            0.125 ms   LAUNCH
    two ops in a row on different backends      0.125 ms   SWITCH
    a last op on the ANE, whose result leaves   0.125 ms   OUTPUT
    the inputs of the graph                     nothing

Source: the claims segment-launch, segment-switch and segment-output. The first two stand in the
`analytics.mil` that Core ML writes, the same in all of 482 graphs on an M4 with macOS 27.0.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from mlprogram.ane import claims

ANE = "ane"
BACKENDS = ("ane", "bnns", "classic_cpu")
LAUNCH, SWITCH, OUTPUT = (
    claims.find(name).number for name in ("segment-launch", "segment-switch", "segment-output")
)
TIE = 1e-6  # totals that differ by fewer ms are equal

Estimates = Sequence[Mapping[str, float]]  # for each op, ms by backend; a backend that is absent
# does not take the op


@dataclass(frozen=True)
class Path:
    """The assignment of least time.

    cost: the total in ms. backends: one for each op. choices: for each op every backend that it has
    in some assignment of the same cost, so that a set of two is a tie.
    """

    cost: float
    backends: tuple[str, ...]
    choices: tuple[frozenset[str], ...]


def _step(before: str | None, backend: str) -> float:
    """The ms that an op on `backend` adds to its own time, by the backend `before` it."""
    if before == backend:
        return 0.0
    return (LAUNCH if backend == ANE else 0.0) + (SWITCH if before is not None else 0.0)


def _end(backend: str) -> float:
    return OUTPUT if backend == ANE else 0.0


def cost(estimates: Estimates, backends: Sequence[str]) -> float:
    """The total ms of an assignment of backends, one for each op."""
    total = 0.0
    before: str | None = None
    for times, backend in zip(estimates, backends, strict=True):
        total += times[backend] + _step(before, backend)
        before = backend
    return total + (_end(before) if before else 0.0)


def shortest(estimates: Estimates) -> Path:
    """Find the assignment of least time; among equals, the one that changes backend latest.

    Raises ValueError for an op that no backend takes.
    """
    if not estimates:
        return Path(0.0, (), ())
    if not all(estimates):
        raise ValueError(f"op {[*map(bool, estimates)].index(False)} has no backend")
    ahead = _ahead(estimates)
    backends: list[str] = []
    for times, rest in zip(estimates, ahead, strict=True):
        before = backends[-1] if backends else None
        totals = {b: _step(before, b) + times[b] + rest[b] for b in times}
        least = min(totals.values())
        equal = [b for b in totals if totals[b] <= least + TIE]
        stays = before if before in equal else None
        backends.append(stays or min(equal, key=BACKENDS.index))
    total = cost(estimates, backends)
    return Path(total, tuple(backends), _choices(estimates, ahead, total))


def _ahead(estimates: Estimates) -> list[dict[str, float]]:
    """For each op and backend, the least ms of all ops after it."""
    ahead = [{backend: _end(backend) for backend in estimates[-1]}]
    for times, after in zip(estimates[-2::-1], estimates[:0:-1], strict=True):
        rest = ahead[-1]
        ahead.append({b: min(_step(b, a) + after[a] + rest[a] for a in after) for b in times})
    return ahead[::-1]


def _choices(
    estimates: Estimates, ahead: list[dict[str, float]], total: float
) -> tuple[frozenset[str], ...]:
    """For each op the backends that it has in some assignment of the least cost."""
    found: list[frozenset[str]] = []
    behind: dict[str | None, float] = {None: 0.0}
    for times, rest in zip(estimates, ahead, strict=True):
        here: dict[str | None, float] = {
            b: times[b] + min(behind[p] + _step(p, b) for p in behind) for b in times
        }
        found.append(frozenset(b for b in times if here[b] + rest[b] <= total + TIE))
        behind = here
    return tuple(found)


def segments(backends: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of one device: ("ane" or "cpu", first op, end), in order."""
    runs, start = [], 0
    for device, run in groupby(ANE if backend == ANE else "cpu" for backend in backends):
        end = start + len([*run])
        runs.append((device, start, end))
        start = end
    return runs
