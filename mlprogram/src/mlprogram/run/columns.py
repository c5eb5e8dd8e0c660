"""Which calls can leave columns out: those of tokens that a call has room for and does not have.

A product of T tokens makes each column of the same column. If a call uses n of them, products may
leave out those from n on, and attention their rows and slots, where nothing of these ever reaches
an earlier column. That is proved from the calls of a stretch: of each piece of memory it is known
that nothing in it depends on a product, or that all that does lies in columns, `step` bytes apart:
byte b depends on none after column b // step % T. A kernel that might join columns, or that has no
rule here, ends the proof; then all columns are computed.

What a mask hides is known in a call only: `CallTable.run` looks whether it hides the columns that
are not used from those that are.
"""

from collections.abc import Callable, Collection
from functools import cache

from mlprogram.run.calls import Place, Region, Used
from mlprogram.run.record import Recorder
import numpy as np

LEAST = 24  # columns; attention takes 16 for fewer
LARGEST = 1 << 20  # values of a copy whose columns are looked for

#: Which argument of a call says how many columns are in use.
LIMITED = {"matmat": 4, "attention": 12}


class Joined(Exception):
    """Columns may depend on later ones."""


def leave_out_columns(recorder: Recorder, made: Collection[str]) -> tuple[int, dict[str, int]]:
    """Have the calls of a stretch leave out the columns that are not used. Returns T, and for each
    mask how many slots come before those of the columns; or 0, where that is not proved.

    made: values that are read after the stretch.
    """
    counts = {call.arguments[3][1] for call in recorder.calls if call.entry == "matmat"}
    columns = ColumnProof(min(counts, default=0))
    if len(counts) != 1 or columns.count < LEAST or columns.count % 8:
        return 0, {}
    try:
        for call in recorder.calls:
            RULES.get(call.entry, ColumnProof.other)(columns, call.arguments)
        for name in made:
            columns.check_result(*recorder.origin(recorder.values[name]), recorder.values[name])
    except Joined:
        return 0, {}
    for call in recorder.calls:
        if call.entry in LIMITED:
            call.arguments[LIMITED[call.entry]] = Used(), 0
    return columns.count, columns.masks


class ColumnProof:
    """The columns of each piece of memory, by its step; 0: of those at places known at run time
    only, which nothing in the stretch may read. masks: by name, the slots before the columns'."""

    def __init__(self, count: int):
        self.count = count
        self.steps: dict[Region, int] = {}
        self.masks: dict[str, int] = {}
        self.tiled: dict[Region, str] = {}  # what is given, over and over

    def read(self, place: Place) -> int | None:
        """The step of the columns from a place on, the first of which is there; None if there are
        none."""
        region, offset = place
        step = self.steps.get(region) if isinstance(region, Region) else None
        if step is not None and (not step or offset % (step * self.count)):
            raise Joined
        return step

    def write(self, place: Place, *steps: int | None) -> None:
        """Columns of these steps go to a place."""
        found, (region, offset) = {*steps} - {None}, place
        if not found:
            return
        step = found.pop()
        if found or not step or not isinstance(region, Region) or region.name:
            raise Joined
        if self.steps.setdefault(region, step) != step or offset % (step * self.count):
            raise Joined

    def other(self, arguments: list[Place]) -> None:
        """A kernel that may join all that it reads."""
        if any(region in self.steps for region, _ in arguments):
            raise Joined

    def product(self, arguments: list[Place]) -> None:
        _, x, y, *_ = arguments
        step = self.read(x)
        if step and step != _size(x):
            raise Joined
        self.write(y, _size(y))

    def along(self, x: Place, y: Place, n: int, inner: int) -> None:
        """x (.., n, inner) -> y: all of n are joined."""
        step = self.read(x)
        if step:
            inner *= _size(x)
            if inner % (step * self.count) and step % (n * inner):
                raise Joined
        self.write(y, step)

    def norm(self, arguments: list[Place]) -> None:
        x, y, _, _, (_, n), (_, inner), *_ = arguments
        self.along(x, y, n, inner)

    def layer_norm(self, arguments: list[Place]) -> None:
        x, y, *_, (_, n), (_, inner), _, _ = arguments
        self.along(x, y, n, inner)

    def softmax(self, arguments: list[Place]) -> None:
        x, y, _, (_, n), (_, inner), _ = arguments
        self.along(x, y, n, inner)

    def rotary(self, arguments: list[Place]) -> None:
        x, cos, sin, y, _, _, (_, run), *_ = arguments
        if self.read(cos) or self.read(sin):
            raise Joined
        self.along(x, y, 2, run)

    def activation(self, arguments: list[Place]) -> None:
        self.write(arguments[1], self.read(arguments[0]))

    def gated(self, arguments: list[Place]) -> None:
        gate, x, y, *_ = arguments
        self.write(y, self.read(gate), self.read(x))

    def attention(self, arguments: list[Place]) -> None:
        """Rows of queries, and slots of the second part, in the order of columns."""
        (shape, _), q, keys, new_keys, values, new_values, mask, out, *_ = arguments
        assert isinstance(shape, tuple)
        _, rows, depth, before, new, mask_rows, *_ = shape
        row, (region, offset) = depth * _size(out), mask
        if new != self.count or mask_rows % self.count or rows % self.count or offset:
            raise Joined
        if not isinstance(region, Region) or region.is_state:
            raise Joined
        if not (name := self.tiled.get(region, region.name)):
            raise Joined
        if any(self.read(place) not in (None, row) for place in (q, new_keys, new_values)):
            raise Joined
        if any(self.read(place) is not None for place in (keys, values, mask)):
            raise Joined
        if self.masks.setdefault(name, before) != before:
            raise Joined
        self.write(out, row)

    def copy(self, arguments: list[Place]) -> None:
        """As `walk`; a mask is given once for all heads that share a key."""
        to, x, (numbers, _) = arguments
        assert isinstance(numbers, tuple)
        given, made = x[0], to[0]
        if isinstance(given, Region) and isinstance(made, Region) and given.name:
            size = made.tensor.itemsize
            n, whole = given.bytes // size, (to[1], x[1], given.is_state) == (0, 0, False)
            form = (2, size, made.bytes // given.bytes, n, given.bytes, size, 0, size)
            if whole and (*numbers[:2], *numbers[5:]) == form:
                self.tiled[made] = given.name
        self.walk(arguments)

    def walk(self, arguments: list[Place]) -> None:
        """Values that are copied, or joined one by one."""
        to, *operands, (numbers, _) = arguments
        assert isinstance(numbers, tuple)
        axes, size = numbers[:2]
        sizes, steps, *others = (numbers[5 + i * axes : 5 + (i + 1) * axes] for i in range(4))
        for (region, offset), own in zip(operands, others, strict=False):
            step = self.steps.get(region) if isinstance(region, Region) else None
            if step is not None:
                lies = (sizes, steps, to[1], own, offset, step, self.count, size)
                self.write((to[0], 0), moved(*lies))

    def slice(self, arguments: list[Place]) -> None:
        """A part that is read, or written, at a place that is known at run time only."""
        whole, part, begin, end, (numbers, _), _ = arguments
        assert isinstance(numbers, tuple)
        read = (whole, begin, end) if numbers[2] else (begin, end)
        if any(self.read(place) is not None for place in read):
            raise Joined
        if not numbers[2] and self.read(part) and isinstance(whole[0], Region):
            self.steps[whole[0]] = 0

    def check_result(self, region: object, offset: int, x) -> None:
        """A result has its columns along an axis, so that who calls may leave out the last."""
        if not isinstance(region, Region) or region.is_state or region not in self.steps:
            return
        step = self.read((region, offset))
        axes = [n for n, by in zip(x.shape, x.stride(), strict=True) if by * x.itemsize == step]
        if self.count not in axes:
            raise Joined


def _size(place: Place) -> int:
    """Bytes of a value."""
    assert isinstance(place[0], Region)
    return place[0].tensor.itemsize


@cache
def moved(
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    to: int,
    others: tuple[int, ...],
    offset: int,
    step: int,
    count: int,
    size: int,
) -> int:
    """The step of columns where values go that lie in columns; raises Joined if they go elsewhere.

    steps, others: of each axis, in bytes, where values go and where they lie, from these offsets
    on. step: of the columns there. size: bytes of a value that is made.
    """
    if not step or np.prod(sizes) > LARGEST:
        raise Joined
    there, here = np.array(to), np.array(offset)
    for n, own, other in zip(sizes, steps, others, strict=True):
        there = np.add.outer(there, np.arange(n) * own)
        here = np.add.outer(here, np.arange(n) * other)
    columns = here // step % count
    # The last ones are of axes that were merged, of values that are as large, or half, or twice.
    for found in sorted({size, *steps, step, step // 2, 2 * step} - {0}):
        if np.array_equal(there // found % count, columns):
            return found
    raise Joined


RULES: dict[str, Callable[[ColumnProof, list[Place]], None]] = {
    "matmat": ColumnProof.product,
    "rms_norm": ColumnProof.norm,
    "layer_norm": ColumnProof.layer_norm,
    "softmax": ColumnProof.softmax,
    "rotary": ColumnProof.rotary,
    "activation": ColumnProof.activation,
    "gated": ColumnProof.gated,
    "attention": ColumnProof.attention,
    "copy": ColumnProof.copy,
    "elementwise": ColumnProof.walk,
    "apply": ColumnProof.walk,
    "slice": ColumnProof.slice,
}
