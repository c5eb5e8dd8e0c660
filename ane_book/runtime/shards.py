"""Run the packages of a bundle in order, each with what it keeps from call to call, each kind by
its own rule: `StateCache`, `HostCache`, `TailCache`, `MemoryCache`. Before a call `inputs` gives
what it takes of each; after it `accept` takes what is for each out of its outputs; `clear` forgets
everything. `read` gives what is kept of the tokens before a call, and `write` replaces it.

In a bundle with tiers, a cache has the slots of the tier that was called last; when a function of
another tier is called, the rows so far are copied into a cache of that one.

A memory has no rows to drop, so copies of it are kept. To rewind, a session goes on from a copy of
before that position and runs the tokens since then again; at worst from the first one. Copies are
kept where a call of several tokens began or ended, the last two of them: the end of a prompt, to
which a chat returns, and the start of a block of `verify`, whose tokens run again in the next call.
Who calls the programs and who picks the calls both go by `marks_after`.

Letters: C hidden size, E experts, T tokens of a call; those of caches are in `ane_book.layout`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from ane_book.bundle import Bundle
from ane_book.bundle.contract import slot_shapes
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Part
from ane_book.errors import InvalidBundle, InvalidInput, InvalidPackage, UnsupportedOp
from ane_book.layout import PER_LAYER, CallShape, Recurrent, Shape, Store, Tail
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import Backend, LoadedFunction
import numpy as np

COPIES = 2  # of a memory

#: How often a program was called, by its package.
Calls = Counter[str]
Arrays = dict[str, np.ndarray]
Marks = dict[int, bool]  # position -> whether a copy of the memory there is to be kept

Each = TypeVar("Each")


def by_tier(manifest: Manifest, functions: dict[str, Each]) -> dict[str, Each]:
    """A part's functions by the names of all tiers; without a cache, the tiers share one."""
    return {own: functions.get(own, functions[name]) for own, name in manifest.names.items()}


def load_part(bundle: Bundle, backend: Backend, part: Part) -> dict[str, LoadedFunction]:
    """Load the functions of a package, by the names of all tiers; raises InvalidBundle unless their
    types are the manifest's."""
    functions = {}
    for name, declared in part.functions.items():
        full_name = part.called(name)
        where = f"{bundle.path / part.package}, function {full_name!r}"
        try:
            functions[name] = backend.load(bundle.path / part.package, full_name)
        except (InvalidInput, InvalidPackage, UnsupportedOp) as error:
            mend = f"`ane-book inspect --checksums {bundle.path}` says what has changed"
            raise InvalidBundle(f"{where}: {error}; {mend}") from None
        for kind in ("inputs", "states", "outputs"):
            expected, actual = (
                {key: f"{type_.dtype} {type_.shape}" for key, type_ in getattr(own, kind).items()}
                for own in (declared, functions[name])
            )
            for key, _ in sorted(expected.items() ^ actual.items()):
                raise InvalidBundle(
                    f"{where}: {kind[:-1]} {key!r} has type {actual.get(key, 'none')}, "
                    f"manifest.json says {expected.get(key, 'none')}; convert the model again"
                )
    return by_tier(bundle.manifest, functions)


class ShardRunner:
    """Runs a package of the bundle; `calls` counts its calls."""

    def __init__(self, bundle: Bundle, backend: Backend, part: Part, calls: Calls):
        manifest, layout = bundle.manifest, bundle.manifest.layout
        self._functions = load_part(bundle, backend, part)
        declared, slots = by_tier(manifest, part.functions), slot_shapes(manifest, part)
        self._stores = next(iter(part.functions.values())).stores(layout)
        own = {*slots, *(store.name for store in self._stores)}
        self._given = {name: {*f.inputs} - own for name, f in declared.items()}
        self._shapes = {name: f.call(layout) for name, f in declared.items()}
        self._dtype, self._context = backend.dtype, manifest.context
        self._adapter = {name: np.zeros(shape, self._dtype) for name, shape in slots.items()}
        self._package, self._calls = part.package, calls
        self._span = slice(*part.layers) if part.layers else slice(0)
        self.start()

    def start(self) -> None:
        """Begin with empty caches of its own."""
        makes = {self._shapes[name].slots: f.make_state for name, f in self._functions.items()}
        states = [store for store in self._stores if store.is_state]
        self._states = StateCache(states, makes, self._dtype)
        self._caches = caches_of(self._stores, self._states, self._dtype, self._context)

    def clear(self) -> None:
        """Empty the caches."""
        for cache in self._caches:
            cache.clear()

    def read(self, position: int) -> Arrays:
        """What the package keeps of the first tokens, by store."""
        caches, call = self._caches, self._smallest(position)
        return {name: own for cache in caches for name, own in cache.read(call).items()}

    def write(self, arrays: Arrays, position: int) -> None:
        """Replace what the package keeps, as `read` gives it."""
        for cache in self._caches:
            cache.write(arrays, self._smallest(position))

    def _smallest(self, position: int) -> "CacheCall":
        """A call of no tokens, in the smallest tier that has room for those before it."""
        shapes = sorted(self._shapes.values(), key=lambda shape: shape.slots)
        return CacheCall(position, 0, next(s for s in shapes if not 0 < s.slots < position))

    def use(self, adapter: Adapter | None) -> None:
        """Take an adapter from the next call on; None: zeros. The cache is not emptied."""
        own = {} if adapter is None else adapter.arrays[self._package]
        self._adapter = {
            name: np.asarray(own[name], self._dtype) if own else np.zeros_like(zeros)
            for name, zeros in self._adapter.items()
        }

    def run(self, function: str, values: dict, tokens: int) -> None:
        """Call a function on its inputs in `values`, and put its outputs there.

        `hidden_out` becomes the next `hidden`. The cache gets the rows, or columns, of the first
        `tokens` tokens, from slot `position` on.
        """
        shape = self._shapes[function]
        call = CacheCall(int(values["position"][0]) if shape.slots else 0, tokens, shape)
        inputs = {name: values[name] for name in self._given[function]}
        inputs |= self._adapter
        if PER_LAYER in inputs:  # (L, P, 1, T), of all layers
            inputs[PER_LAYER] = inputs[PER_LAYER][self._span]
        for cache in self._caches:
            inputs |= cache.inputs(call)
        outputs = self._functions[function].predict(inputs, self._states.state, used=tokens)
        self._calls[self._package] += 1
        for cache in self._caches:
            cache.accept(outputs, call)
        if "hidden_out" in outputs:
            outputs["hidden"] = outputs.pop("hidden_out")
        values.update(outputs)


class ExpertPrograms:
    """Runs the experts of one layer, each a program, in order: only those that some token chose.

    There may be thousands, of which a text uses a few, so an expert is opened when it is first
    called, for all sessions that share these programs.
    """

    def __init__(self, bundle: Bundle, backend: Backend, parts: list[Part], calls: Calls):
        self._bundle, self._backend, self._parts, self._calls = bundle, backend, parts, calls
        self._opened: dict[int, dict[str, LoadedFunction]] = {}
        self._lock = Lock()

    def clear(self) -> None:
        """Do nothing: experts keep nothing from call to call."""

    def run(self, function: str, values: dict, tokens: int) -> None:
        """Run the experts on `x` (1, C, 1, T) and `gates` (1, E, 1, T); puts their sum `y` into
        `values`.

        Only the gates of the first `tokens` columns choose; the sum is in single precision.
        Raises InvalidBundle for an expert that cannot be opened.
        """
        x, gates = values["x"], values["gates"]
        total = np.zeros(x.shape, np.float32)
        for expert in np.flatnonzero((gates[0, :, 0, :tokens] != 0).any(axis=1)):
            gate = np.ascontiguousarray(gates[:, expert : expert + 1])
            total += self._functions(expert)[function].predict({"x": x, "gate": gate})["y"]
            self._calls[self._parts[expert].package] += 1
        with np.errstate(over="ignore"):  # a result that is not finite is noticed later
            values["y"] = total.astype(x.dtype)

    def _functions(self, expert: int) -> dict[str, LoadedFunction]:
        with self._lock:
            if expert not in self._opened:
                part = self._parts[expert]
                self._opened[expert] = load_part(self._bundle, self._backend, part)
            return self._opened[expert]


Steps = list[ShardRunner | ExpertPrograms]


def load_steps(
    bundle: Bundle, backend: Backend, parts: list[Part], calls: Calls | None = None
) -> Steps:
    """Load parts on the backend; the experts of a layer are one step, which opens each at need.

    calls: counts the calls of each program.
    """
    calls = Calls() if calls is None else calls
    steps: Steps = []
    for of_experts, group in groupby(parts, lambda part: part.part == "experts"):
        if of_experts:
            steps.append(ExpertPrograms(bundle, backend, list(group), calls))
        else:
            steps += (ShardRunner(bundle, backend, part, calls) for part in group)
    return steps


# --- what is kept from call to call ---------------------------------------------------------------


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
        self._rows = {own.name: own for own in stores if not isinstance(own.kind, Recurrent)}
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

    def read(self, call: CacheCall) -> Arrays:
        rows = call.shape.layout.at(0, call.at)
        return {n: np.asarray(self.state.read_state(n))[rows] for n in self._rows}

    def write(self, arrays: Arrays, call: CacheCall) -> None:
        self._slots, self.state = call.shape.slots, self._make[call.shape.slots]()
        for name, store in self._rows.items():
            array = _grown(arrays[name], store.shape(call.shape), call, self._dtype)
            self.state.write_state(name, array)

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

    def read(self, call: CacheCall) -> Arrays:
        return {self._store.name: self._array[call.shape.layout.at(0, call.at)]}

    def write(self, arrays: Arrays, call: CacheCall) -> None:
        self._array, self._slots = arrays[self._store.name], 0
        self.inputs(call)

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

    def read(self, call: CacheCall) -> Arrays:
        return self.inputs(call)

    def write(self, arrays: Arrays, call: CacheCall) -> None:
        self.clear()
        self._columns[..., call.at : call.at + self._width] = arrays[self._name]

    def clear(self) -> None:
        self._columns = np.zeros(self._shape, self._dtype)


class MemoryCache:
    """A memory, and copies of it to go back to. states: has it, if it is a state."""

    _marks: Marks
    _copies: dict[int, np.ndarray]
    _now: int  # the position of the state; -1: of none

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
        self._now = -1  # where an interrupted call leaves it
        return {}

    def accept(self, outputs: Arrays, call: CacheCall) -> None:
        stop = call.at + call.tokens
        self._marks = marks_after(self._marks, call.at, stop, call.shape.tokens > 1)
        self._now = stop
        self._copies.pop(stop, None)  # the state's is newer
        if not self._in_state:
            self._copies[stop] = np.array(outputs.pop(f"new_{self._name}"))
        self._copies = {at: own for at, own in self._copies.items() if at in self._marks}

    def read(self, call: CacheCall) -> Arrays:
        if self._in_state and call.at == self._now:
            return {self._name: np.asarray(self._states.state.read_state(self._name))}
        return {self._name: self._copies[call.at]}

    def write(self, arrays: Arrays, call: CacheCall) -> None:
        self._marks, self._copies, self._now = {call.at: True}, {call.at: arrays[self._name]}, 0

    def clear(self) -> None:
        self._marks, self._copies, self._now = {}, {}, 0


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
