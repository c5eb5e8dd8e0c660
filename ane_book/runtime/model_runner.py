"""`ModelRunner`: call the programs of a bundle for a session: layers in order, then the head.

Letters: C hidden size, T tokens of a call, S slots of the cache, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import starmap
from math import prod
from typing import NamedTuple

from ane_book.bundle import Bundle
from ane_book.bundle.contract import slot_shapes
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Part
from ane_book.device import memory_bytes
from ane_book.errors import InvalidBundle
from ane_book.options import tier_name
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import Backend
from ane_book.runtime.caches import Marks, marks_after
from ane_book.runtime.inputs import HostInputs
from ane_book.runtime.shards import Calls, HeadRunner, Shard, stages
import numpy as np


class Chunk(NamedTuple):
    """A call: its function, its first slot, the one after its last."""

    function: str
    first: int
    stop: int


class ChunkOutput(NamedTuple):
    """The shards' output of one call."""

    function: str
    hidden: np.ndarray  # (1, C, 1, T)
    new: slice  # the columns of it that were not in the cache before


def check_memory(manifest: Manifest, parts: Iterable[Part]) -> None:
    """Raise InvalidBundle where caches, masks, tables and slots exceed this machine's memory."""
    S, host = manifest.context, manifest.host
    needed = sum(4 * T * (slots + T) * len(host.masks) for T, slots in manifest.tiered.values())
    needed += sum(2 * 8 * S * rotary.head_dim for rotary in host.rotary.values())
    for part in parts:
        function = next(iter(part.functions.values()))
        call = function.call(manifest.layout)
        kept = [store.held(call) for store in function.stores(manifest.layout)]
        needed += 2 * sum(map(prod, [*kept, *slot_shapes(manifest, part).values()]))
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise InvalidBundle(
            f"{manifest.name}: a context of {S:,} tokens takes {needed / 1e9:,.1f} GB, and "
            f"{limit / 1e9:,.1f} GB of memory are here; convert it with a shorter one"
        )


class ModelRunner:
    """The functions of a bundle's packages, loaded, with their caches and input arrays.

    calls: how often each program was called so far. tiers: how often the layers were called in each
    tier of the cache, by its slots, ascending. block: K of `verify`, else 1. shards: what runs the
    layers, where they are not loaded here.

    Raises InvalidBundle when a package is not what the manifest says.
    """

    def __init__(self, bundle: Bundle, backend: Backend, shards: Iterable[Shard] | None = None):
        manifest = bundle.manifest
        self.context, self.argmax_output = manifest.context, manifest.argmax_output
        self.vocabulary = manifest.embedding.shape[0]
        self._widths = manifest.functions
        self.block = manifest.functions.get("verify", 1)
        self.calls, self.tiers = Calls(), Counter(dict.fromkeys(manifest.tiers, 0))
        self._marks: Marks = {}
        self._remembers = manifest.has_memory
        if shards is None:
            check_memory(manifest, manifest.packages)
            shards = stages(bundle, lambda: backend, self.calls)
        self._shards = list(shards)
        self._head = HeadRunner(bundle, backend, self.calls)
        self._inputs = HostInputs(bundle, backend.dtype)

    def clear(self) -> None:
        """Empty every shard's cache."""
        self._marks = {}
        for shard in self._shards:
            shard.clear()

    def use(self, adapter: Adapter | None) -> None:
        """Take an adapter, or none, from the next call on; the caches stay as they are."""
        for shard in self._shards:
            shard.use(adapter)

    def chunks(self, position: int, tokens: int, guesses: int = 0) -> Iterator[Chunk]:
        """Cut tokens from slot `position` on into calls, for each of which the cache has T slots.

        Where `verify` is the only function, it takes them all, block by block. guesses: the number
        of guesses after a single token; its call takes what it has room for. A model with a memory
        may begin earlier, where there is a copy of it, and goes to `verify` where a block begins.
        """
        end, width = position + tokens, self._widths.get("prefill")
        position = self._copied(position) if self._remembers else position
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
        """Run tokens (n,), n <= T, through all shards; returns the last hidden state (1, C, 1, T).

        They go to slots `position` and after, in the smallest cache that has room for all T.
        """
        function = self._tiered(function, position)
        values = self._inputs.of(function, ids, position)
        several = self._inputs.tokens(function) > 1
        self._marks = marks_after(self._marks, position, position + len(ids), several)
        for shard in self._shards:
            values = shard.run(function, values, len(ids))
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
        return self._head.run(hidden)
