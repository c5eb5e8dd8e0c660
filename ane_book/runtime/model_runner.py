"""`ModelRunner`: call the programs of a bundle for a session: layers in order, then the head.
`HostInputs`: what the host gives to the layers.

Letters: C hidden size, D head size, T tokens of a call, S slots of the cache, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import starmap
from math import prod
from typing import NamedTuple

from ane_book.bundle import Bundle
from ane_book.bundle.contract import slot_shapes
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import FunctionSpec, Part
from ane_book.errors import InvalidBundle
from ane_book.host import MASKED, causal_mask, per_layer_columns
from ane_book.layout import PER_LAYER, Layout
from ane_book.options import tier_name
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import Backend
from ane_book.runtime.shards import (
    Calls,
    Marks,
    ShardRunner,
    Steps,
    load_steps,
    marks_after,
)
from mlprogram.machine import memory_bytes
import numpy as np


class Chunk(NamedTuple):
    """A call: its function, its first slot, the one after its last."""

    function: str
    first: int
    stop: int


class ChunkOutput(NamedTuple):
    """The layers' output of one call."""

    function: str
    hidden: np.ndarray  # (1, C, 1, T)
    new: slice  # the columns of it that were not in the cache before


def kept_bytes(manifest: Manifest, parts: Iterable[Part]) -> int:
    """How many bytes caches, masks, tables and slots of these packages take."""
    S, host = manifest.context, manifest.host
    needed = sum(4 * T * (slots + T) * len(host.masks) for T, slots in manifest.tiered.values())
    needed += sum(2 * 8 * S * rotary.head_dim for rotary in host.rotary.values())
    for part in parts:
        function = next(iter(part.functions.values()))
        call = function.call(manifest.layout)
        kept = [store.held(call) for store in function.stores(manifest.layout)]
        needed += 2 * sum(map(prod, [*kept, *slot_shapes(manifest, part).values()]))
    return needed


def check_memory(manifest: Manifest, needed: int) -> None:
    """Raise InvalidBundle where a context takes more bytes than this machine has memory."""
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise InvalidBundle(
            f"{manifest.name}: a context of {manifest.context:,} tokens takes {needed / 1e9:,.1f} "
            f"GB, and {limit / 1e9:,.1f} GB of memory are here; convert it with a shorter one"
        )


class ModelRunner:
    """The functions of a bundle's packages, loaded, with their caches and input arrays.

    calls: how often each program was called so far. tiers: how often the layers were called in each
    tier of the cache, by its slots, ascending. block: K of `verify`, else 1. steps: what runs the
    layers, where they are not loaded here.

    Raises InvalidBundle when a package is not what the manifest says.
    """

    def __init__(self, bundle: Bundle, backend: Backend, steps: Steps | None = None):
        manifest = bundle.manifest
        self.context, self.argmax_output = manifest.context, manifest.argmax_output
        self.vocabulary = manifest.embedding.shape[0]
        self._widths = manifest.functions
        self._names = {T: name for name, T in self._widths.items()}
        self.block = manifest.functions.get("verify", 1)
        self.calls, self.tiers = Calls(), Counter(dict.fromkeys(manifest.tiers, 0))
        self._marks: Marks = {}
        self._gap = range(0)  # no call begins at these tokens: rows before them are not there
        self._remembers = manifest.has_memory
        if steps is None:
            check_memory(manifest, kept_bytes(manifest, manifest.packages))
            layers = [part for part in manifest.packages if part.part != "head"]
            steps = load_steps(bundle, backend, layers, self.calls)
        self._steps = steps
        self._head = load_steps(bundle, backend, manifest.head, self.calls)
        self._logits = [f"logits_{i}" for i in range(len(manifest.splits))]
        self._inputs = HostInputs(bundle, backend.dtype)

    def clear(self) -> None:
        """Empty every package's cache."""
        self._marks, self._gap = {}, range(0)
        for step in self._steps:
            step.clear()

    def read(self, position: int) -> list[dict[str, np.ndarray]]:
        """What each package keeps of the first tokens, by store."""
        return [step.read(position) for step in self._steps if isinstance(step, ShardRunner)]

    def write(self, kept: list[dict[str, np.ndarray]], position: int, whole: bool) -> None:
        """Replace what the packages keep, as `read` gives it.

        whole: caches and tails have rows of all tokens; else a call that begins before `position`
        lacks some, and the tokens before it run again.
        """
        self._marks, self._gap = {position: True}, range(1, 1 if whole else position)
        steps = (step for step in self._steps if isinstance(step, ShardRunner))
        for step, own in zip(steps, kept, strict=True):
            step.write(own, position)

    def use(self, adapter: Adapter | None) -> None:
        """Take an adapter, or none, from the next call on; the caches stay as they are."""
        for step in self._steps:
            if isinstance(step, ShardRunner):
                step.use(adapter)

    def chunks(self, position: int, tokens: int, guesses: int = 0) -> Iterator[Chunk]:
        """Cut tokens from slot `position` on into calls, for each of which the cache has T slots.

        Where `verify` is the only function, it takes them all, block by block. guesses: the number
        of guesses after a single token; its call takes what it has room for. A model with a memory
        may begin earlier, where there is a copy of it, and goes to `verify` where a block begins.
        """
        end, width = position + tokens, self._widths.get("prefill")
        position = self._copied(position) if self._remembers else position
        if self.step(position, 1).first in self._gap:
            position = 0
        while position < end:
            stop = min(position + (width or 0), end)
            if self._remembers:
                stop -= stop % self.block
            if end - position == 1 or stop <= position or position + (width or 0) > self.context:
                chunk = self.step(position, end - position + guesses)
            else:
                chunk = Chunk("prefill", position, stop)
            yield chunk
            position = chunk.stop

    def _copied(self, position: int) -> int:
        """The last position up to this one that calls can begin at: the memory there is at hand."""
        at_hand = (at for at in self._marks if at <= position and self.step(at, 1).first == at)
        return max(at_hand, default=0)

    def step(self, position: int, tokens: int) -> Chunk:
        """The call for the token of slot `position`, and as many after it as the call takes.

        `verify` takes the block of K slots that the token is in, and runs the block's earlier
        tokens again. So the token of a slot always has the same column of the same graph, after the
        same cache, and the same result to the bit, guessed or not. `decode` takes the slots at the
        context's end that are not a whole block, and all slots if there is no `verify`; where
        `verify` is the only function, the context is a number of whole blocks.
        """
        first = position - position % self.block
        if self.block == 1 or first + self.block > self.context:
            return Chunk("decode", position, position + 1)
        return Chunk("verify", first, min(first + self.block, position + tokens))

    def forward(self, function: str, ids: np.ndarray, position: int) -> np.ndarray:
        """Run tokens (n,), n <= T, through all layers; returns the last hidden state (1, C, 1, T).

        They go to slots `position` and after, in the smallest cache that has room for all T.
        """
        function = self._tiered(function, position)
        values = self._inputs.of(function, ids, position)
        stop, several = position + len(ids), self._inputs.tokens(function) > 1
        after = marks_after(self._marks, position, stop, several)
        self._marks = {at: own for at, own in after.items() if at < stop}  # if interrupted
        for step in self._steps:
            step.run(function, values, len(ids))
        self._marks = after
        if position < self._gap.stop:  # what runs again from the first token on, so far
            self._gap = range(stop + 1, self._gap.stop)
        return values["hidden"]

    def _tiered(self, function: str, position: int) -> str:
        """The function's name in the smallest tier with room after `position`; counts the call."""
        slots = next(S for S in self.tiers if position + self._widths[function] <= S)
        self.tiers[slots] += 1
        return tier_name(function, slots, self.context)

    def passes(self, calls: Iterable[tuple[str, np.ndarray, int]]) -> Iterator[np.ndarray]:
        """Yield the result of `forward` for each call, in order."""
        return starmap(self.forward, calls)

    def head(self, hidden: np.ndarray) -> np.ndarray | list[int]:
        """Logits (T, V) float32, or token ids, of a hidden state (1, C, 1, T)."""
        T = hidden.shape[3]
        values = {"hidden": np.ascontiguousarray(hidden)}
        for step in self._head:
            step.run(self._names[T], values, T)
        if self.argmax_output:
            return values["token"].reshape(-1).tolist()
        parts = [values[name][0, :, 0, :] for name in self._logits]  # (V_i, T)
        return np.concatenate(parts, axis=0, dtype=np.float32, casting="unsafe").T  # (T, V)


class _Mask:
    """A mask as the layout has it, updated in place as the position moves; `_rows` is a view of it,
    (1, 1, T, S + T)."""

    def __init__(
        self, tokens: int, context: int, window: int | None, layout: Layout, dtype: np.dtype
    ):
        rows = causal_mask(0, tokens, context).astype(dtype)
        self.array = np.ascontiguousarray(layout.turned(rows))
        self._rows = layout.rows(self.array)
        self._tokens, self._context = tokens, context
        self._window = window if window and window < context + tokens else None
        self._visible = 0  # slots that it lets through

    def move(self, position: int) -> None:
        """Update the mask for a call whose first token goes to slot `position`."""
        if self._window:
            self._rows[:] = causal_mask(position, self._tokens, self._context, self._window)
            return
        low, high = sorted((self._visible, position))
        self._rows[..., low:high] = 0.0 if position > self._visible else MASKED
        self._visible = position


class _Call:
    """The input arrays of one function, which takes T tokens."""

    def __init__(self, function: FunctionSpec, manifest: Manifest, dtype: np.dtype):
        T, slots = function.tokens, function.slots
        assert slots is not None, "functions of a decoder's first package have a cache"
        self.tokens = T
        self.hidden = np.zeros((1, manifest.embedding.shape[1], 1, T), dtype)
        self.real = np.zeros((1, 1, 1, T), dtype)
        self.position = np.zeros(1, np.int32)
        self.masks = {
            name: _Mask(T, slots, window, manifest.layout, dtype)
            for name, window in manifest.host.masks.items()
        }


class HostInputs:
    """Makes the host's inputs for every function of a bundle's layers: hidden state, masks, rotary
    tables, and what each layer gets of its own.

    Each function has its arrays made once: rotary tables are views into one table for the whole
    context, and a mask changes only where the position moved.
    """

    def __init__(self, bundle: Bundle, dtype: np.dtype):
        manifest = bundle.manifest
        self._bundle, self._scale = bundle, np.float32(manifest.host.embedding_scale)
        self._layout, self._layers = manifest.layout, manifest.shards[-1].span.stop
        tables = manifest.host.tables(np.arange(manifest.context), manifest.context)
        turned = {name: manifest.layout.turned(table) for name, table in tables.items()}
        self._tables = {n: np.ascontiguousarray(table, dtype) for n, table in turned.items()}
        self._calls = {
            name: _Call(function, manifest, dtype)
            for name, function in manifest.packages[0].functions.items()
        }
        self._has_memory = manifest.has_memory

    def of(self, function: str, ids: np.ndarray, position: int) -> dict[str, np.ndarray]:
        """All inputs of a function for tokens (n,), n <= T, that go to slots `position` and after.

        Columns beyond n are padding: their output is ignored, and what they write to the cache is
        masked until a real token overwrites it.
        """
        call, n = self._calls[function], len(ids)
        call.hidden[0, :, 0, :n], call.hidden[..., n:] = self.columns(ids), 0
        inputs = {"hidden": call.hidden, **self.around(function, position)}
        if self._bundle.per_layer is not None:
            columns = per_layer_columns(self._bundle.per_layer[ids], self._layers)  # (L, P, 1, n)
            padding = [(0, 0)] * 3 + [(0, call.tokens - n)]
            inputs[PER_LAYER] = np.pad(columns.astype(call.hidden.dtype), padding)
        if self._has_memory:
            call.real[..., :n], call.real[..., n:] = 1, 0
            inputs["real"] = call.real
        return inputs

    def columns(self, ids: np.ndarray) -> np.ndarray:
        """The hidden states (C, n) of tokens (n,) before the first layer, float32."""
        return self._embedding[ids].T * self._scale  # (n, C) -> (C, n)

    def around(self, function: str, position: int) -> dict[str, np.ndarray]:
        """All inputs of a function but the hidden state, where the first token goes to slot
        `position`."""
        call = self._calls[function]
        call.position[0] = position
        for mask in call.masks.values():
            mask.move(position)
        window = self._layout.at(position, position + call.tokens)
        return {
            "position": call.position,
            **{name: mask.array for name, mask in call.masks.items()},
            **{name: np.ascontiguousarray(table[window]) for name, table in self._tables.items()},
        }

    def tokens(self, function: str) -> int:
        """T of a function."""
        return self._calls[function].tokens

    @cached_property
    def _embedding(self) -> np.ndarray:
        return np.asarray(self._bundle.embedding)  # (V, C), still mapped, less overhead
