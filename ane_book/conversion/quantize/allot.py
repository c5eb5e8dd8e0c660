"""Which bits for which matrix: the most that a budget buys of what the loss feels.

Each matrix may be stored by any of some schemes, each with its bytes and an expected loss. All
start with the fewest bytes. Then the step to a larger scheme that takes off most loss a byte is
taken, and again, while the budget lasts: greedy over the lower convex hull of each matrix's
choices, which is the best there is but for the bytes that are left over at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Choice", "allot"]


@dataclass(frozen=True)
class Choice:
    """A scheme for a matrix: its name, its bytes, and the loss that it is expected to cost."""

    scheme: str
    bytes: int
    loss: float


def allot(matrices: Sequence[Sequence[Choice]], budget: int) -> list[Choice] | None:
    """A choice for each matrix, of at most so many bytes together; None where nothing fits."""
    hulls = [_hull(choices) for choices in matrices]
    taken = [0] * len(hulls)
    left = budget - sum(hull[0].bytes for hull in hulls)
    if left < 0:
        return None
    steps = sorted(
        (_gain(*pair), i, step)
        for i, hull in enumerate(hulls)
        for step, pair in enumerate(pairwise(hull), 1)
    )
    for _, i, step in reversed(steps):
        more = hulls[i][step].bytes - hulls[i][taken[i]].bytes
        if step > taken[i] and more <= left:
            taken[i], left = step, left - more
    return [hull[step] for hull, step in zip(hulls, taken, strict=True)]


def _gain(small: Choice, large: Choice) -> float:
    """Loss taken off by a byte."""
    return (small.loss - large.loss) / (large.bytes - small.bytes)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """Those that are worth their bytes: each takes off more loss a byte than the next ones."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.bytes, choice.loss)):
        if hull and choice.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-1], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull
