"""The calls that a session makes, as the manifest has them: layers in order, then the head.

Where each matrix is a program of the device, what is between them runs on the executor.

Each function of a bundle has its input arrays made once: rotary tables are views into one table for
the whole context, and a mask changes only where the position moved.

Letters: C hidden size, D head size, K key/value heads, T tokens of a call, S slots of the cache,
V vocabulary; n layers of a shard.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from math import prod
from typing import Any

from ane_book.bundle import Bundle
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Part
from ane_book.device import memory_bytes
from ane_book.errors import InvalidBundle, InvalidInput, InvalidPackage, UnsupportedOp
from ane_book.host import MASKED, causal_mask
from ane_book.runtime.backends import Backend, LoadedFunction, MILBackend
from ane_book.runtime.experts import Calls, Experts
import numpy as np

__all__ = ["Chunk", "Engine", "Feeds", "Head", "Shard", "load_part", "load_steps", "stages"]


Chunk = tuple[str, int, int]  # a call: its function, its first slot, the one after its last


def load_part(bundle: Bundle, backend: Backend, part: Part) -> dict[str, LoadedFunction]:
    """The functions of a package, held to the types that the manifest promises."""
    functions = {}
    for name, declared in part.functions.items():
        own = part.called(name)
        where = f"{bundle.path / part.package}, function {own!r}"
        try:
            functions[name] = backend.load(bundle.path / part.package, own)
        except (InvalidInput, InvalidPackage, UnsupportedOp) as error:
            mend = f"`ane-book inspect --verify {bundle.path}` says what has changed"
            raise InvalidBundle(f"{where}: {error}; {mend}") from None
        for kind in ("inputs", "states", "outputs"):
            wanted = {k: (t.dtype, t.shape) for k, t in getattr(declared, kind).items()}
            found = {k: (t.dtype, t.shape) for k, t in getattr(functions[name], kind).items()}
            for key in sorted(wanted.keys() | found.keys()):
                if wanted.get(key) != found.get(key):
                    raise InvalidBundle(
                        f"{where}: {kind[:-1]} {key!r} has type {_said(found.get(key))}, "
                        f"manifest.json says {_said(wanted.get(key))}; convert the model again"
                    )
    return functions


def _said(type_: tuple[str, tuple[int, ...]] | None) -> str:
    return "none" if type_ is None else f"{type_[0]} {type_[1]}"


def _kept(part: Part) -> dict[str, tuple[int, ...]]:
    """Shapes of what the host keeps for a package from call to call, caches (n, K, S, D) and tails
    (n, R, 1, W): see the manifest."""
    function = next(iter(part.functions.values()))
    return {n: t.shape for n, t in function.inputs.items() if f"new_{n}" in function.outputs}


def _held(shape: tuple[int, ...], context: int) -> tuple[int, ...]:
    """Of what is kept, the shape that the host holds: of a tail every column, behind W zeros."""
    *rows, slots, last = shape
    return shape if slots > 1 else (*rows, 1, last + context)


def _check_memory(manifest: Manifest) -> None:
    """Refuse a cache, masks and rotary tables that this machine cannot hold, before any is made."""
    S, host = manifest.context, manifest.host
    T = max(manifest.functions.values())
    needed = 4 * T * (S + T) * len(host.masks)
    needed += sum(2 * 8 * S * rotary.head_dim for rotary in host.rotary.values())
    for part in manifest.packages:
        states = next(iter(part.functions.values())).states.values()
        held = [_held(shape, S) for shape in _kept(part).values()]
        needed += 2 * sum(map(prod, [*held, *(t.shape for t in states)]))
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise InvalidBundle(
            f"{manifest.name}: a context of {S:,} tokens takes {needed / 1e9:,.1f} GB, and "
            f"{limit / 1e9:,.1f} GB of memory are here; convert it with a shorter one"
        )


class _Mask:
    """A mask (1, 1, T, S + T) that follows the position."""

    def __init__(self, tokens: int, context: int, window: int | None, dtype: np.dtype):
        self.array = causal_mask(0, tokens, context).astype(dtype)
        self._tokens, self._context = tokens, context
        self._window = window if window and window < context + tokens else None
        self._visible = 0  # slots that it lets through

    def move(self, position: int) -> None:
        """As it is for a call whose first token goes to slot `position`."""
        if self._window:
            own = self._tokens, self._context, self._window
            self.array[:] = causal_mask(position, *own)
            return
        low, high = sorted((self._visible, position))
        self.array[..., low:high] = 0.0 if position > self._visible else MASKED
        self._visible = position


class _Call:
    """What the host gives to one function, T tokens wide."""

    def __init__(self, tokens: int, manifest: Manifest, dtype: np.dtype):
        self.tokens = tokens
        self._scale = np.float32(manifest.host.embedding_scale)
        self._hidden = np.zeros((1, manifest.embedding.shape[1], 1, tokens), dtype)
        self._masks = {
            name: _Mask(tokens, manifest.context, window, dtype)
            for name, window in manifest.host.masks.items()
        }
        self._position = np.zeros(1, np.int32)

    def inputs(
        self, rows: np.ndarray, position: int, tables: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The values for embedding rows (n, C), n <= T, that go to slots `position` and after.

        Rows beyond n are padding: their output is ignored, and what they write to the cache is
        masked until a real token overwrites it.
        """
        self._hidden[0, :, 0, : len(rows)] = rows.T * self._scale  # (n, C) -> (C, n)
        self._hidden[..., len(rows) :] = 0
        self._position[0] = position
        for mask in self._masks.values():
            mask.move(position)
        window = slice(position, position + self.tokens)
        return {
            "hidden": self._hidden,
            "position": self._position,
            **{name: mask.array for name, mask in self._masks.items()},
            **{name: table[:, :, window] for name, table in tables.items()},
        }


class Feeds:
    """The inputs of every function of a bundle's layers, as the host makes them."""

    def __init__(self, bundle: Bundle, dtype: np.dtype):
        manifest = bundle.manifest
        self._embedding = np.asarray(bundle.embedding)  # (V, C), still mapped, less overhead
        tables = manifest.host.tables(np.arange(manifest.context), manifest.context)
        self._tables = {name: table.astype(dtype) for name, table in tables.items()}  # (1, 1, S, D)
        self._calls = {
            name: _Call(function.tokens, manifest, dtype)
            for name, function in manifest.packages[0].functions.items()
        }

    def of(self, function: str, ids: np.ndarray, position: int) -> dict[str, np.ndarray]:
        """What a function takes for tokens (n,) that go to slots `position` and after."""
        return self._calls[function].inputs(self._embedding[ids], position, self._tables)


class _Step:
    """A part of the bundle with what is kept for it, in the program's states or by the host."""

    def __init__(
        self,
        part: Part,
        functions: dict[str, LoadedFunction],
        context: int,
        dtype: np.dtype,
        calls: Calls,
    ):
        self._functions, self._context, self._dtype = functions, context, dtype
        self._shapes = _kept(part)
        self._given = {n: set(f.inputs) - set(self._shapes) for n, f in part.functions.items()}
        self._stateful = any(function.states for function in part.functions.values())
        self._name, self._calls = (part.package, None), calls
        self.clear()

    def clear(self) -> None:
        """As before the first token."""
        one = next(iter(self._functions.values()))
        self._state: Any = one.make_state() if self._stateful else None
        shapes = {name: _held(shape, self._context) for name, shape in self._shapes.items()}
        self._kept = {name: np.zeros(shape, self._dtype) for name, shape in shapes.items()}

    def run(self, function: str, values: dict, tokens: int) -> None:
        """Call a function on its inputs among `values`, and put its results there by their names,
        `hidden_out` as the next `hidden`; what is kept grows by `tokens` rows or columns."""
        at = values["position"][0] if self._kept else 0
        inputs = {name: values[name] for name in self._given[function]}
        inputs |= {name: self._before(name, at) for name in self._kept}
        outputs = self._functions[function].predict(inputs, self._state)
        self._calls[self._name] += 1
        for name, kept in self._kept.items():
            new, (*_, slots, W) = outputs.pop(f"new_{name}"), self._shapes[name]
            if slots > 1:
                kept[:, :, at : at + tokens] = new[:, :, :tokens]
            else:
                kept[..., W + at : W + at + tokens] = new[..., :tokens]
        if "hidden_out" in outputs:
            outputs["hidden"] = outputs.pop("hidden_out")
        values.update(outputs)

    def _before(self, name: str, at: int) -> np.ndarray:
        """The cache; the W columns of a tail before position `at`."""
        *_, slots, W = self._shapes[name]
        kept = self._kept[name]
        return kept if slots > 1 else np.ascontiguousarray(kept[..., at : at + W])


class Shard:
    """Some layers: what runs them, in order, with what is kept for them."""

    def __init__(self, steps: list[_Step | Experts]):
        self._steps = steps

    def clear(self) -> None:
        """As before the first token."""
        for step in self._steps:
            step.clear()

    def run(self, function: str, values: dict, tokens: int) -> dict:
        """The values after these layers: `hidden` (1, C, 1, T), and what else they hand on; what is
        kept grows by `tokens` rows."""
        values = dict(values)
        for step in self._steps:
            step.run(function, values, tokens)
        return values


class Head:
    """The parts of the head."""

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
) -> list[_Step | Experts]:
    """Parts on the backend, the experts of a layer as one step.

    What is the host's is on the executor, in the backend's precision. calls: counts those of the
    backend.
    """
    calls = Calls() if calls is None else calls
    host, steps = MILBackend("fp16" if backend.dtype == np.float16 else "fp32"), []
    for apart, group in groupby(parts, lambda part: part.part == "experts"):
        own = list(group)
        loaded = [load_part(bundle, backend if p.stretch is None else host, p) for p in own]
        if apart:
            steps.append(Experts(own, loaded, calls))
            continue
        for part, functions in zip(own, loaded, strict=True):
            counted = calls if part.stretch is None else Calls()
            context, dtype = bundle.manifest.context, backend.dtype
            steps.append(_Step(part, functions, context, dtype, counted))
    return steps


def stages(
    bundle: Bundle, backend: Callable[[], Backend], calls: Calls | None = None
) -> Iterator[Shard]:
    """What a hidden state passes, in order, each loaded when its turn comes."""
    parts: list[Part] = []
    for part in bundle.manifest.packages:
        if part.part == "head":
            return
        parts.append(part)
        if "hidden_out" in next(iter(part.functions.values())).outputs:
            yield Shard(load_steps(bundle, backend(), parts, calls))
            parts = []


class Engine:
    """The functions of a bundle's packages, loaded, with their caches and input arrays.

    calls: how often each program of the backend was called since. block: K of `verify`, else 1.

    Raises InvalidBundle when a package is not what the manifest says.
    """

    def __init__(self, bundle: Bundle, backend: Backend):
        manifest = bundle.manifest
        _check_memory(manifest)
        self.context, self.argmax_output = manifest.context, manifest.argmax_output
        self.vocabulary = manifest.embedding.shape[0]
        self._width = manifest.functions["prefill"]
        self.block = manifest.functions.get("verify", 1)
        self.calls = Calls()
        self._shards = list(stages(bundle, lambda: backend, self.calls))
        self._head = Head(bundle, backend, self.calls)
        self._feeds = Feeds(bundle, backend.dtype)

    def clear(self) -> None:
        """Empty every shard's cache."""
        for shard in self._shards:
            shard.clear()

    def chunks(self, position: int, tokens: int) -> Iterator[Chunk]:
        """How tokens from slot `position` on are cut into calls, each with room for all its T."""
        end = position + tokens
        while position < end:
            chunk = "prefill", position, min(position + self._width, end)
            if end - position == 1 or position + self._width > self.context:
                chunk = self.step(position, end - position)
            yield chunk
            position = chunk[2]

    def step(self, position: int, tokens: int) -> Chunk:
        """The call for the token of slot `position`, and as many after it as it takes.

        With `verify` it is of the block of K slots that the token is in: those of the block before
        it are given again. So a token has its own column of one graph, beside the cache before the
        block, and the same result to the bit, guessed or not. `decode` has the context's rest.
        """
        first = position - position % self.block
        if self.block == 1 or first + self.block > self.context:
            return "decode", position, position + 1
        return "verify", first, min(first + self.block, position + tokens)

    def forward(self, function: str, ids: np.ndarray, position: int) -> np.ndarray:
        """Run tokens (n,), n <= T, that go to slots `position` and after through all shards: the
        last hidden state (1, C, 1, T)."""
        values = self._feeds.of(function, ids, position)
        for shard in self._shards:
            values = shard.run(function, values, len(ids))
        return values["hidden"]

    def head(self, hidden: np.ndarray) -> np.ndarray | list[int]:
        """Logits (T, V) float32, or token ids, of a hidden state (1, C, 1, T)."""
        return self._head.run(hidden)
