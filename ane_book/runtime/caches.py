"""What a package keeps from call to call, each kind by its own rule: `StateCache`, `HostCache`,
`TailCache`, `MemoryCache`. Before a call `inputs` gives what it takes of each; after it `accept`
takes what is for each out of its outputs; `clear` forgets everything.

In a bundle with tiers, a cache has the slots of the tier that was called last; when a function of
another tier is called, the rows so far are copied into a cache of that one.

A memory has no rows to drop, so copies of it are kept. To rewind, a session goes on from a copy of
before that position and runs the tokens since then again; at worst from the first one. Copies are
kept where a call of several tokens began or ended, the last two of them: the end of a prompt, to
which a chat returns, and the start of a block of `verify`, whose tokens run again in the next call.
Who calls the programs and who picks the calls both go by `marks_after`.

Letters: see `ane_book.layout`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ane_book.layout import CallShape, Recurrent, Shape, Store, Tail
import numpy as np

COPIES = 2  # of a memory

Arrays = dict[str, np.ndarray]
Marks = dict[int, bool]  # position -> whether a copy of the memory there is to be kept


class CacheCall(NamedTuple):
    """A call of `tokens` tokens, the rest being padding, the first of which goes to slot `at`."""

    at: int
    tokens: int
    shape: CallShape


class StateCache:
    """All states of a package; make: by the slots of a tier, makes its states. Programs write new
    rows themselves."""

    def __init__(
        self, stores: Sequence[Store], make: Mapping[int, Callable[[], Any]], dtype: np.dtype
    ):
        self._stores, self._make, self._dtype = stores, make, dtype
        self.state: Any = None
        self._slots = 0

    def inputs(self, call: CacheCall) -> Arrays:
        if self._slots != call.shape.slots:
            former, self._slots = self.state, call.shape.slots
            self.state = self._make[call.shape.slots]()
            for store in () if former is None else self._stores:
                shape, array = store.shape(call.shape), former.read_state(store.name)
                if isinstance(store.kind, Recurrent):  # the same in every tier
                    self.state.write_state(store.name, array)
                elif call.at:
                    array = _grown(array, shape, call, self._dtype)
                    self.state.write_state(store.name, array)
        return {}

    def accept(self, outputs: Arrays, call: CacheCall) -> None:
        pass

    def clear(self) -> None:
        if hasattr(self.state, "clear"):  # the executor's, which keeps its memory; not Core ML's
            self.state.clear()
        else:
            self.state, self._slots = None, 0


class HostCache:
    """Keys or values in an array of the host's, made by the first call."""

    _array: np.ndarray
    _slots: int

    def __init__(self, store: Store, dtype: np.dtype):
        self._store, self._dtype = store, dtype
        self.clear()

    def inputs(self, call: CacheCall) -> Arrays:
        if self._slots != call.shape.slots:
            shape, self._slots = self._store.shape(call.shape), call.shape.slots
            self._array = _grown(self._array, shape, call, self._dtype)
        return {self._store.name: self._array}

    def accept(self, outputs: Arrays, call: CacheCall) -> None:
        new, rows = outputs.pop(f"new_{self._store.name}"), call.shape.layout.at
        self._array[rows(call.at, call.at + call.tokens)] = new[rows(0, call.tokens)]

    def clear(self) -> None:
        self._array, self._slots = np.zeros((0,) * 4, self._dtype), 0


class TailCache:
    """The columns of an activation of all tokens, W zeros before them: so a session can go back to
    any token. They are the same in every tier; context: the slots of the largest."""

    def __init__(self, store: Store, dtype: np.dtype, context: int):
        self._name, self._shape = store.name, store.held(CallShape(1, context))
        self._width, self._dtype = self._shape[3] - context, dtype
        self.clear()

    def inputs(self, call: CacheCall) -> Arrays:
        before = self._columns[..., call.at : call.at + self._width]
        return {self._name: np.ascontiguousarray(before)}

    def accept(self, outputs: Arrays, call: CacheCall) -> None:
        new, at = outputs.pop(f"new_{self._name}"), self._width + call.at
        self._columns[..., at : at + call.tokens] = new[..., : call.tokens]

    def clear(self) -> None:
        self._columns = np.zeros(self._shape, self._dtype)


class MemoryCache:
    """A memory, and copies of it to go back to. states: has it, if it is a state."""

    def __init__(self, store: Store, dtype: np.dtype, states: StateCache):
        self._name, self._in_state, self._states = store.name, store.is_state, states
        self._zeros = np.zeros(store.shape(CallShape(1)), dtype)
        self.clear()

    def inputs(self, call: CacheCall) -> Arrays:
        at, state = call.at, self._states.state
        if not self._in_state:
            return {self._name: self._copies[at] if at else self._zeros}
        if at != self._now:
            state.write_state(self._name, self._copies[at] if at else self._zeros)
        elif at not in self._copies and (call.shape.tokens > 1 or self._marks.get(at)):
            self._copies[at] = np.array(state.read_state(self._name))
        return {}

    def accept(self, outputs: Arrays, call: CacheCall) -> None:
        stop = call.at + call.tokens
        self._marks = marks_after(self._marks, call.at, stop, call.shape.tokens > 1)
        self._now = stop
        self._copies.pop(stop, None)  # the state's is newer
        if not self._in_state:
            self._copies[stop] = np.array(outputs.pop(f"new_{self._name}"))
        self._copies = {at: own for at, own in self._copies.items() if at in self._marks}

    def clear(self) -> None:
        self._marks: Marks = {}
        self._copies: dict[int, np.ndarray] = {}
        self._now = 0


def marks_after(marks: Marks, start: int, stop: int, several: bool) -> Marks:
    """The positions at which a memory is at hand after a call for slots `start` to `stop`.

    several: whether its function takes more than one token.
    """
    before = {at: True for at, stays in marks.items() if at <= start and (stays or several)}
    return dict(list(before.items())[-COPIES:]) | {stop: several}


Cache = StateCache | HostCache | TailCache | MemoryCache


def caches_of(
    stores: Sequence[Store], states: StateCache, dtype: np.dtype, context: int
) -> list[Cache]:
    """The caches of a package: of its states, and of each of its stores that needs one."""
    found: list[Cache] = [states] if any(store.is_state for store in stores) else []
    for store in stores:
        if isinstance(store.kind, Recurrent):
            found.append(MemoryCache(store, dtype, states))
        elif isinstance(store.kind, Tail):
            found.append(TailCache(store, dtype, context))
        elif not store.is_state:
            found.append(HostCache(store, dtype))
    return found


def _grown(former: np.ndarray, shape: Shape, call: CacheCall, dtype: np.dtype) -> np.ndarray:
    """A cache of this shape that begins with the rows of another one before the call's."""
    cache = np.zeros(shape, dtype)
    if former.size:
        rows = call.shape.layout.at(0, call.at)
        cache[rows] = former[rows]
    return cache
