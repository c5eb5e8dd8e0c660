"""Programs that leave sizes open, in C: tables of calls that are recorded for the sizes of calls.

A call of sizes that none has had before runs from Python: many have them once only. Two calls of
one size, or of sizes of which some grow by the same number, such as the tokens seen and a mask's
slots, have tables recorded: for one size, or for the least, the largest and one between. If all
their numbers are in proportion to the size, so they are for every size between (`lines.py`). A step
for which they are not runs from Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlprogram.run.plan import ExecutionPlan
from mlprogram.run.stretches import NativeStretch, Shapes, divided
from torch import Tensor

FAMILIES = 8  # of which tables are kept
BEYOND = 64  # sizes that are added where a program sets no limit

Sizes = tuple[int, ...]  # those of a call that the program leaves open


@dataclass
class _Family:
    """Calls whose sizes differ in one number: the first of those that grow, from least to largest.

    sizes: of one of them. grows: which of its sizes do. run: takes inputs, states and that number.
    """

    sizes: Sizes
    grows: tuple[bool, ...]
    least: int
    largest: int
    run: Callable | None = None

    def with_size(self, size: int) -> Sizes:
        more = size - self.size
        return tuple(n + more * grows for n, grows in zip(self.sizes, self.grows, strict=True))

    @property
    def size(self) -> int:
        return self.number(self.sizes)

    def number(self, sizes: Sizes) -> int:
        """What is the same for no other sizes of the family."""
        return next((n for n, grows in zip(sizes, self.grows, strict=True) if grows), 0)

    def has(self, sizes: Sizes) -> bool:
        size = self.number(sizes)
        return self.least <= size <= self.largest and self.with_size(size) == sizes


class OpenSizes:
    """`run(inputs, states)` of a plan whose inputs leave sizes open.

    plainly: the same from Python. load: makes such a function of steps and stretches, which takes
    the size that grows as well. bounds: the largest sizes of each input by its name, -1 for none.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        plainly: Callable,
        load: Callable[[list], Callable],
        bounds: Mapping[str, tuple[int, ...]],
    ):
        self.plan, self.plainly, self.load = plan, plainly, load
        self.axes = [
            (i, name, axis)
            for i, (name, type_) in enumerate(plan.function.inputs.items())
            for axis, size in enumerate(type_.shape)
            if size is None
        ]
        self.most = [bounds[name][axis] if bounds.get(name) else -1 for _, name, axis in self.axes]
        self.families: list[_Family] = []
        self.last: Sizes | None = None

    def __call__(self, inputs: list[Tensor], states: dict[str, Tensor]) -> tuple:
        sizes = tuple(inputs[i].shape[axis] for i, _, axis in self.axes)
        family = next((f for f in self.families if f.has(sizes)), None)
        if family is None:
            family = self.grown(sizes)
        elif family is not self.families[0]:  # those least used are dropped
            self.families = [family, *[f for f in self.families if f is not family]]
        self.last = sizes
        if family is None or family.run is None:
            return self.plainly(inputs, states)
        return family.run(inputs, states, family.number(sizes))

    def grown(self, sizes: Sizes) -> _Family | None:
        """Record tables for these sizes and those of the call before, if they are alike."""
        if self.last is None:
            return None
        steps = [n - before for n, before in zip(sizes, self.last, strict=True)]
        if len({*steps} - {0}) > 1:
            return None
        family = _Family(sizes, tuple(step != 0 for step in steps), 0, 0)
        if any(steps):
            limits = [
                most - n for n, most, step in zip(sizes, self.most, steps, strict=True)
                if step and most >= 0
            ]  # fmt: skip
            size = family.size
            family.least = max(2, min(size, family.number(self.last)))
            family.largest = size + (min(limits) if limits else max(size, BEYOND))
            if family.largest - family.least < 3:
                return None
        family.run = self.recorded(family)
        self.families = [family, *self.families][:FAMILIES]
        return family if family.has(sizes) else None

    def recorded(self, family: _Family) -> Callable | None:
        """The function for a family's sizes; None if nothing of it would run in C."""
        places = [family.least]
        if any(family.grows):
            half = (family.least + family.largest) // 2
            places += [half + (half - family.least) % 2 - 1, family.largest]
        shapes: Shapes = {place: self.shapes(family.with_size(place)) for place in places}
        parts, _ = divided(self.plan, shapes)
        return self.load(parts) if any(isinstance(p, NativeStretch) for p in parts) else None

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The shape of each input."""
        left = iter(sizes)
        return {
            name: tuple(next(left) if size is None else size for size in type_.shape)
            for name, type_ in self.plan.function.inputs.items()
        }
