"""Run the packages of a bundle in order, each with what it keeps (`ane_book.runtime.caches`).

Letters: C hidden size, E experts, T tokens of a call.
"""

from collections import Counter
from copy import copy
from itertools import groupby
from threading import Lock
from typing import TypeVar

from ane_book.bundle import Bundle
from ane_book.bundle.contract import slot_shapes
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Part
from ane_book.errors import InvalidBundle, InvalidInput, InvalidPackage, UnsupportedOp
from ane_book.layout import PER_LAYER
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import Backend, LoadedFunction
from ane_book.runtime.caches import CacheCall, StateCache, caches_of
from mlprogram.machine import memory_bytes
import numpy as np

#: How often a program was called, by its package.
Calls = Counter[str]

Each = TypeVar("Each")


def by_tier(manifest: Manifest, functions: dict[str, Each]) -> dict[str, Each]:
    """A part's functions by the names of all tiers; without a cache, the tiers share one."""
    return {own: functions.get(own, functions[name]) for own, name in manifest.names.items()}


def check_memory(manifest: Manifest, needed: int) -> None:
    """Raise InvalidBundle where a context takes more bytes than this machine has memory."""
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise InvalidBundle(
            f"{manifest.name}: a context of {manifest.context:,} tokens takes {needed / 1e9:,.1f} "
            f"GB, and {limit / 1e9:,.1f} GB of memory are here; convert it with a shorter one"
        )


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
            mend = f"`ane-book inspect --verify {bundle.path}` says what has changed"
            raise InvalidBundle(f"{where}: {error}; {mend}") from None
        for kind in ("inputs", "states", "outputs"):
            expected, actual = (
                {key: f"{type_.dtype} {type_.shape}" for key, type_ in getattr(own, kind).items()}
                for own in (declared, functions[name])
            )
            for key, _ in sorted(expected.items() ^ actual.items()):
                raise InvalidBundle(
                    f"{where}: {kind[:-1]} {key!r} has type {actual.get(key)}, manifest.json says "
                    f"{expected.get(key)}; convert the model again"
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
        outputs = self._functions[function].predict(inputs, self._states.state)
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


def another(steps: Steps) -> Steps:
    """The same programs with empty caches, for another session."""
    copies = [copy(step) for step in steps]
    for step in copies:
        if isinstance(step, ShardRunner):
            step.start()
    return copies


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
