"""A stretch of steps as data: what a table of calls of compiled code is given in each call.

`stretches.py` makes it of steps, and `kept.py` keeps it in a file. Torch is not imported: memory is
arrays of numpy's, to which torch may have tensors.
"""

from collections.abc import Iterable, Sequence
import ctypes
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from mlprogram.kernels import compiled
from mlprogram.kernels.threads import threads
import numpy as np

if TYPE_CHECKING:
    from mlprogram.run.states import States

ALIGNMENT = 64  # bytes
CLOSED = -30000  # in a mask, or less: `CLOSED` of slots.h
SMALL = 1088  # bytes; below 1,024 numpy gives memory that it has kept, which no poison reaches

#: The base of a value, where it begins there, dtype (numpy's `str`), shape, and steps in bytes.
View = tuple[int, int, str, tuple[int, ...], tuple[int, ...]]


class CallTable(NamedTuple):
    """What the calls of a stretch are given, for one size.

    An address is counted from a base: 0 is none, 1 the arena, then each of what is given, of the
    states, of the whole numbers that are known, and of what is new; the table of calls; the number
    of slots of each state of `written`; and how many columns are used, or 0 for all.

    length: words of the calls, behind which lie numbers that they point at. arena: its bytes.
    given, states: names, dtypes and shapes. known: dtypes, shapes and contents. new: dtypes and
    shapes. updated: states that are written at known positions. made: the values that are read
    later. columns: how many a call has, of which the first may be used alone, or 0; masks: which of
    what is given hide later ones, and how many slots come before theirs (`columns.py`).
    """

    length: int
    arena: int
    given: Sequence[tuple[str, str, tuple[int, ...]]]
    states: Sequence[tuple[str, str, tuple[int, ...]]]
    known: Sequence[tuple[str, tuple[int, ...], int | list]]
    new: Sequence[tuple[str, tuple[int, ...]]]
    written: Sequence[str]
    updated: Sequence[str]
    made: Sequence[View]
    columns: int
    masks: Sequence[tuple[int, int]]

    def run(
        self, words: np.ndarray, states: "States", given: Iterable[np.ndarray], used: int = 0
    ) -> tuple[int, list[np.ndarray]] | None:
        """Run the calls. words: the table, which lives as long. used: see `MLProgram.predict`.

        Returns the place of the one that failed, or -1, and the memory from base 1 on; None, and
        nothing was run, for arrays or states that are not of these shapes.
        """
        held = [states.array(name) for name, *_ in self.states]
        memory = [*given, *held]
        for x, (_, dtype, shape) in zip(memory, (*self.given, *self.states), strict=True):
            if x.dtype.str != dtype or x.shape != shape:
                return None
        if not all(x.flags.c_contiguous for x in held):
            return None
        memory[: -len(held) or None] = map(np.ascontiguousarray, memory[: -len(held) or None])
        memory = [new("|u1", (self.arena,)), *memory]
        memory += [numbers(*known) for known in self.known]
        memory += [new(dtype, shape) for dtype, shape in self.new]
        table = address(words)
        bases = [0, *map(address, memory), table]
        bases += [*(states.address(name) for name in self.written), self._used(used, memory)]
        array = (ctypes.c_int64 * len(bases))(*bases)
        for name in self.updated:
            states.forget(name)
        return compiled.run_steps(table, self.length, array, threads()), memory

    def _used(self, used: int, memory: list[np.ndarray]) -> int:
        """How many columns are computed, or 0 for all, as where a mask shows those that are used
        another one."""
        if not 0 < used < self.columns:
            return 0
        hidden = (
            memory[1 + i].reshape(self.columns, -1)[:used, slots + used :]
            for i, slots in self.masks
        )
        return used if all((x <= CLOSED).all() for x in hidden) else 0


def new(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Memory that nobody has filled, at a place that vectors do not straddle."""
    size = prod(shape) * np.dtype(dtype).itemsize
    block = np.empty(size + SMALL, np.uint8)
    begin = SMALL - (address(block) + SMALL) % ALIGNMENT
    return np.ndarray(shape, dtype, block, begin)


def address(x: np.ndarray) -> int:
    """Where the memory of an array without gaps begins, in a third of the time of `x.ctypes`."""
    if x.flags.writeable and x.size:
        return ctypes.addressof(ctypes.c_char.from_buffer(x.data))
    return x.ctypes.data


def numbers(dtype: str, shape: tuple[int, ...], contents: object) -> np.ndarray:
    """Whole numbers that are known, anew: a call may be given their memory to write to."""
    return np.array(contents, dtype).reshape(shape)


def read(view: View, memory: Sequence[np.ndarray]) -> np.ndarray:
    """A value. memory: from base 1 on."""
    base, begin, dtype, shape, steps = view
    whole = memory[base - 1]
    if whole.dtype.str == dtype and whole.shape == shape and whole.strides == steps:
        return whole
    return np.ndarray(shape, dtype, whole, begin, steps)
