"""Run the packages of a bundle in order, each with its cache.

Where a bundle has tiers, a package has one cache, of the tier that was called last; when a function
of another tier is called, the rows are copied into a cache of that one.

Letters: C hidden size, D head size, K key/value heads, T tokens of a call, S slots of the cache,
V vocabulary; n layers of a shard.
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from ane_book.bundle import Bundle
from ane_book.bundle.contract import slot_shapes
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import FunctionSpec, Part
from ane_book.errors import InvalidBundle, InvalidInput, InvalidPackage, UnsupportedOp
from ane_book.layout import MEMORY, PER_LAYER
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import Backend, LoadedFunction
from ane_book.runtime.experts import Calls, ExpertPrograms
from ane_book.runtime.memory import Copies
import numpy as np


def load_part(bundle: Bundle, backend: Backend, part: Part) -> dict[str, LoadedFunction]:
    """Load the functions of a package; raises InvalidBundle unless the types are the manifest's."""
    functions = {}
    for name, declared in part.functions.items():
        full_name = part.called(name)
        where = f"{bundle.path / part.package}, function {full_name!r}"
        try:
            functions[name] = backend.load(bundle.path / part.package, full_name)
        except (InvalidInput, InvalidPackage, UnsupportedOp) as error:
            mend = f"`ane-book inspect --verify {bundle.path}` says what has changed"
            raise InvalidBundle(f"{where}: {error}; {mend}") from None
        for kind in ("inputs", "states", "outputs"):
            expected = {k: (t.dtype, t.shape) for k, t in getattr(declared, kind).items()}
            actual = {k: (t.dtype, t.shape) for k, t in getattr(functions[name], kind).items()}
            for key in sorted(expected.keys() | actual.keys()):
                if expected.get(key) != actual.get(key):
                    raise InvalidBundle(
                        f"{where}: {kind[:-1]} {key!r} has type {_said(actual.get(key))}, "
                        f"manifest.json says {_said(expected.get(key))}; convert the model again"
                    )
    return functions


def _said(type_: tuple[str, tuple[int, ...]] | None) -> str:
    return "none" if type_ is None else f"{type_[0]} {type_[1]}"


def kept_shapes(function: FunctionSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of what the host passes in for a package's caches (n, K, S, D), tails (n, R, 1, W) and
    memory (n, H, Dv, Dk), which it keeps from call to call: see the manifest."""
    return {n: t.shape for n, t in function.inputs.items() if f"new_{n}" in function.outputs}


def tails(manifest: Manifest, function: FunctionSpec) -> set[str]:
    """The names of a package's tails."""
    kept, slots = kept_shapes(function), function.slots or 0
    return {
        name
        for name, shape in kept.items()
        if name != MEMORY and manifest.layout.is_tail(shape, slots)
    }


def has_memory(manifest: Manifest) -> bool:
    """Whether some layers have a memory, which is of all tokens up to the last one."""
    firsts = (next(iter(part.functions.values())) for part in manifest.shards)
    return any(MEMORY in function.states | function.inputs for function in firsts)


def held_shapes(manifest: Manifest, function: FunctionSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of the host's arrays: a cache, or of a tail W zeros, and then all columns."""
    wide = tails(manifest, function)
    return {
        name: (*shape[:3], shape[3] + manifest.context) if name in wide else shape
        for name, shape in kept_shapes(function).items()
    }


Each = TypeVar("Each")


def by_tier(manifest: Manifest, functions: dict[str, Each]) -> dict[str, Each]:
    """A part's functions by the names of all tiers; without a cache, the tiers share one."""
    return {own: functions.get(own, functions[name]) for own, name in manifest.names.items()}


class ShardRunner:
    """Runs a package of the bundle, whose cache is in the program's states or in host arrays."""

    def __init__(
        self,
        manifest: Manifest,
        part: Part,
        functions: dict[str, LoadedFunction],
        dtype: np.dtype,
        calls: Calls,
    ):
        self._functions = by_tier(manifest, functions)
        self._declared = by_tier(manifest, part.functions)
        self._shapes = {n: _without_memory(kept_shapes(f)) for n, f in self._declared.items()}
        own = {n: {MEMORY, *shapes} for n, shapes in self._shapes.items()}
        self._given = {n: set(f.inputs) - own[n] for n, f in self._declared.items()}
        held = {n: held_shapes(manifest, f) for n, f in self._declared.items()}
        self._held = {n: _without_memory(shapes) for n, shapes in held.items()}
        self._tails = tails(manifest, next(iter(part.functions.values())))
        slots = slot_shapes(manifest, part)
        self._given = {name: given - slots.keys() for name, given in self._given.items()}
        self._adapter = {name: np.zeros(shape, dtype) for name, shape in slots.items()}
        self._layout, self._dtype = manifest.layout, dtype
        self._package, self._calls = part.package, calls
        self._span = slice(*part.layers) if part.layers else slice(0)
        first = next(iter(part.functions.values()))
        self._memory = (first.states | first.inputs).get(MEMORY)  # its type, or None
        self.start()

    def start(self) -> None:
        """Begin with an empty cache of its own."""
        self._cache = _Cache(None, None, {})
        self._forget_copies()

    def clear(self) -> None:
        """Empty the cache; the executor's states keep their memory."""
        slots, state, kept = self._cache
        if not hasattr(state, "clear"):  # nor have Core ML's
            self.start()
            return
        state.clear()
        zeros = {name: np.zeros(array.shape, array.dtype) for name, array in kept.items()}
        self._cache = _Cache(slots, state, zeros)
        self._forget_copies()

    def _forget_copies(self) -> None:
        self._copies = Copies(self._memory.shape, self._dtype, MEMORY) if self._memory else None

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
        slots, shapes = self._declared[function].slots, self._shapes[function]
        at = int(values["position"][0]) if slots else 0
        if self._cache.slots != slots:
            self._cache = self._moved(function, at)
        _, state, kept = self._cache
        inputs = {name: values[name] for name in self._given[function]}
        if PER_LAYER in inputs:  # (L, P, 1, T), of all layers
            inputs[PER_LAYER] = inputs[PER_LAYER][self._span]
        inputs |= {name: self._before(name, shape, at) for name, shape in shapes.items()}
        inputs |= self._adapter
        declared = self._declared[function]
        several, of_state = declared.tokens > 1, MEMORY in declared.states
        if self._copies is not None:
            memory = self._copies.before(at, several, state if of_state else None)
            inputs |= {} if of_state else {MEMORY: memory}
        outputs = self._functions[function].predict(inputs, state)
        self._calls[self._package] += 1
        if self._copies is not None:
            new = None if of_state else np.array(outputs.pop(f"new_{MEMORY}"))
            self._copies.after(at, at + tokens, several, new)
        for name, (*_, W) in shapes.items():
            new = outputs.pop(f"new_{name}")
            if name in self._tails:
                kept[name][..., W + at : W + at + tokens] = new[..., :tokens]
            else:
                own = self._layout.at
                kept[name][own(at, at + tokens)] = new[own(0, tokens)]
        if "hidden_out" in outputs:
            outputs["hidden"] = outputs.pop("hidden_out")
        values.update(outputs)

    def _before(self, name: str, shape: tuple[int, ...], at: int) -> np.ndarray:
        """The input for what is kept: a whole cache, or a tail's W columns before `at`."""
        kept = self._cache.kept[name]
        is_tail = name in self._tails
        return np.ascontiguousarray(kept[..., at : at + shape[3]]) if is_tail else kept

    def _moved(self, function: str, at: int) -> "_Cache":
        """Make the cache for a function of another tier, with a copy of the first `at` rows."""
        declared, (_, state, kept) = self._declared[function], self._cache
        own: Any = self._functions[function].make_state() if declared.states else None
        for name, type_ in declared.states.items():
            if state is not None and name == MEMORY:  # the same in every tier
                own.write_state(name, state.read_state(name))
            elif state is not None and at:
                own.write_state(name, self._grown(type_.shape, state.read_state(name), at))
        moved = {}
        for name, shape in self._held[function].items():
            if name not in kept:
                moved[name] = np.zeros(shape, self._dtype)
            else:  # a tail is the same in every tier
                is_tail = name in self._tails
                moved[name] = kept[name] if is_tail else self._grown(shape, kept[name], at)
        return _Cache(declared.slots, own, moved)

    def _grown(self, shape: tuple[int, ...], former: np.ndarray, at: int) -> np.ndarray:
        """A cache that begins with the first `at` rows of another one."""
        cache, rows = np.zeros(shape, self._dtype), self._layout.at(0, at)
        cache[rows] = former[rows]
        return cache


def _without_memory(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Of what the host keeps, all but the memory, of which `Copies` are kept."""
    return {name: shape for name, shape in shapes.items() if name != MEMORY}


class _Cache(NamedTuple):
    """The cache of a part: its slots (None before a call), the program's state, host arrays."""

    slots: int | None
    state: Any
    kept: dict[str, np.ndarray]


class Shard:
    """Some layers: the packages that run them, in order, with their caches."""

    def __init__(self, steps: list[ShardRunner | ExpertPrograms]):
        self._steps = steps

    def clear(self) -> None:
        """Empty the caches."""
        for step in self._steps:
            step.clear()

    def use(self, adapter: Adapter | None) -> None:
        """Take an adapter, or none, for all layers."""
        for step in self._steps:
            if isinstance(step, ShardRunner):
                step.use(adapter)

    def another(self) -> "Shard":
        """The same programs with empty caches, for another session."""
        steps = [copy(step) for step in self._steps]
        for step in steps:
            if isinstance(step, ShardRunner):
                step.start()
        return Shard(steps)

    def run(self, function: str, values: dict, tokens: int) -> dict:
        """Run the layers on `values`; returns them with the next `hidden` (1, C, 1, T) and what
        else the layers hand on. Caches get the rows of the first `tokens` tokens."""
        values = dict(values)
        for step in self._steps:
            step.run(function, values, tokens)
        return values


class HeadRunner:
    """Runs the packages of the head."""

    def __init__(self, bundle: Bundle, backend: Backend, calls: Calls | None = None):
        manifest = bundle.manifest
        self._steps = load_steps(bundle, backend, manifest.head, calls)
        self._outputs = [f"logits_{i}" for i in range(len(manifest.splits))]
        self._functions = {T: name for name, T in manifest.functions.items()}

    def run(self, hidden: np.ndarray) -> np.ndarray | list[int]:
        """Logits (T, V) float32, or token ids, of a hidden state (1, C, 1, T)."""
        function = self._functions[hidden.shape[3]]
        values = {"hidden": np.ascontiguousarray(hidden)}
        for step in self._steps:
            step.run(function, values, hidden.shape[3])
        if not self._outputs:
            return values["token"].reshape(-1).tolist()
        parts = [values[name][0, :, 0, :] for name in self._outputs]  # (V_i, T)
        return np.concatenate(parts, axis=0, dtype=np.float32, casting="unsafe").T  # (T, V)


def load_steps(
    bundle: Bundle, backend: Backend, parts: list[Part], calls: Calls | None = None
) -> list[ShardRunner | ExpertPrograms]:
    """Load parts on the backend; the experts of a layer are one step, which opens each at need.

    calls: counts the calls of each program.
    """
    calls = Calls() if calls is None else calls
    steps: list[ShardRunner | ExpertPrograms] = []
    for apart, group in groupby(parts, lambda part: part.part == "experts"):
        if apart:
            steps.append(ExpertPrograms(list(group), partial(_load_expert, bundle, backend), calls))
            continue
        for part in group:
            functions = load_part(bundle, backend, part)
            steps.append(ShardRunner(bundle.manifest, part, functions, backend.dtype, calls))
    return steps


def _load_expert(bundle: Bundle, backend: Backend, part: Part) -> dict[str, LoadedFunction]:
    return by_tier(bundle.manifest, load_part(bundle, backend, part))


def stages(
    bundle: Bundle, backend: Callable[[], Backend], calls: Calls | None = None
) -> Iterator[Shard]:
    """Yield the shards before the head, in order, each loaded when its turn comes."""
    parts: list[Part] = []
    for part in bundle.manifest.packages:
        if part.part == "head":
            return
        parts.append(part)
        if "hidden_out" in next(iter(part.functions.values())).outputs:
            yield Shard(load_steps(bundle, backend(), parts, calls))
            parts = []
