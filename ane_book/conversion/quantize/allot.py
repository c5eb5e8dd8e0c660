"""Choose a scheme for each matrix, so that a budget of bytes costs the least loss.

Each matrix may be stored by one of several schemes, each with its bytes and an expected loss. All
start with the fewest bytes. Then, while the budget lasts, the step to a larger scheme that removes
the most loss per byte is taken: greedy over the lower convex hull of each matrix's choices, which
is optimal but for the bytes that are left over at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Choice:
    """A scheme for a matrix: its name, its bytes, and the loss that it is expected to cost."""

    scheme: str
    bytes: int
    loss: float


def allot(matrices: Sequence[Sequence[Choice]], budget: int) -> list[Choice] | None:
    """Make a choice for each matrix, at most `budget` bytes in all; None where nothing fits."""
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
    """Loss removed per byte added."""
    return (small.loss - large.loss) / (large.bytes - small.bytes)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The lower convex hull: each step removes more loss per byte than the steps after it."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.bytes, choice.loss)):
        if hull and choice.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-1], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull
