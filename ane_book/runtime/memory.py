"""Where a model with a memory can go back to: a memory has no rows to drop, so copies are kept.

The memory (`ane_book.layout.MEMORY`) is of all tokens up to the last one. To rewind, a session goes
on from a copy of before that position and runs the tokens since then again; at worst from the
first one. Copies are kept where a call of several tokens began or ended, the last two of them: the
end of a prompt, to which a chat returns, and the start of a block of `verify`, whose tokens run
again in the next call. Who calls the programs and who picks the calls both go by `marks_after`.
"""

from typing import Any

import numpy as np

KEPT = 2

Marks = dict[int, bool]  # position -> whether a copy of the memory there is to be kept


def marks_after(marks: Marks, start: int, stop: int, several: bool) -> Marks:
    """The positions at which the memory is at hand after a call for slots `start` to `stop`.

    several: whether its function takes more than one token.
    """
    before = {at: True for at, stays in marks.items() if at <= start and (stays or several)}
    return dict(list(before.items())[-KEPT:]) | {stop: several}


class Copies:
    """The memory of a package at some positions: the one of now in its state or here, others here.

    state: the program's, if it keeps the memory; else None, and `given` is what a call takes.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, name: str):
        self._zeros, self._name = np.zeros(shape, dtype), name
        self._marks: Marks = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._now = 0

    def before(self, start: int, several: bool, state: Any) -> np.ndarray:
        """The memory for a call at `start`, put into the state where there is one."""
        stays = several or self._marks.get(start, False)
        if state is not None and start == self._now and start not in self._arrays:
            if not stays:
                return self._zeros
            self._arrays[start] = np.array(state.read_state(self._name))
        memory = self._arrays[start] if start else self._zeros
        if state is not None and start != self._now:
            state.write_state(self._name, memory)
        return memory

    def after(self, start: int, stop: int, several: bool, new: np.ndarray | None) -> None:
        """Note a call; new: the memory that it returned, if it is no state."""
        self._marks, self._now = marks_after(self._marks, start, stop, several), stop
        if new is not None:
            self._arrays[stop] = new
        self._arrays = {at: own for at, own in self._arrays.items() if at in self._marks}
        if new is None:
            self._arrays.pop(stop, None)  # the state's is newer
