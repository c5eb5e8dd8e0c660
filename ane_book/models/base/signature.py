"""`BlockSignature`: what a block of a model takes, keeps from call to call, and gives.

    hidden, *new, *given = block(hidden, *host, per_layer, *keeps, *reads, *taken)

An architecture says it once for each kind of block. Whoever lowers a block, runs it in PyTorch,
plans its memory or writes its package reads it here, and `Signatures` for several layers together.

Letters: see `ane_book.models.base`; P channels of a layer's own input.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ane_book.layout import PER_LAYER, CallShape, Kept, Recurrent, Rows, Shape, Tail
from ane_book.models.base.config import DecoderConfig

if TYPE_CHECKING:
    from ane_book.models.base.experts import Experts
    import numpy as np

SHARED = "shared_"  # before a cache's name: its new rows, which layers without their own take
ORDER = Rows, Tail, Recurrent  # in which a package has what its layers keep


@dataclass(frozen=True)
class Table:
    """A rotary table of one row a token: D numbers."""

    width: int

    def shape(self, call: CallShape) -> Shape:
        return call.layout.input(call.tokens, self.width)


@dataclass(frozen=True)
class MaskInput:
    """The mask of a layer, in which G query heads share a key head."""

    group: int = 1

    def often(self, call: CallShape) -> int:
        """How often a block has each token's row: by rows once for every head of a group, unless
        one row serves all heads, as with one token or without a cache."""
        by_rows = call.layout.tokens == 2
        return self.group if by_rows and call.slots and call.tokens > 1 else 1

    def shape(self, call: CallShape) -> Shape:
        T = call.tokens
        return call.layout.input(self.often(call) * T, call.slots + T)


@dataclass(frozen=True)
class Columns:
    """An activation, a column a token, in every form: (1, channels, 1, T)."""

    channels: int

    def shape(self, call: CallShape) -> Shape:
        return 1, self.channels, 1, call.tokens


@dataclass(frozen=True)
class OwnInput(Columns):
    """What the host gives to each layer of its own, by the token alone: P channels.

    rows(read, embedding, table) yields what tokens give to all layers, rows (n, L * P) float32,
    some tokens at a time. read(name) gives a tensor by its `transformers` name; embedding: (V, C),
    fp16; table: the rows of the tensor `per_layer.table`, in order.
    """

    rows: "Callable[..., Iterator[np.ndarray]]"


HostInput = Table | MaskInput | Columns


@dataclass(frozen=True)
class BlockSignature:
    """One kind of block.

    host: what the host computes for it, by name. own: its own input, as every layer has it. keeps:
    what it keeps from call to call. reads: the caches that it reads and does not write, those of
    the last layer before it that keeps them, with whose new rows they come. takes, gives: the
    channels of other activations that blocks pass to later ones. lends: it gives the new rows of
    its cache to later layers. mixture: its experts, if it has any. memory_scale: its memory is that
    of `transformers` times this.
    """

    host: Mapping[str, HostInput]
    own: OwnInput | None = None
    keeps: Mapping[str, Kept] = field(default_factory=dict)
    reads: Mapping[str, Rows] = field(default_factory=dict)
    takes: Mapping[str, int] = field(default_factory=dict)
    gives: Mapping[str, int] = field(default_factory=dict)
    lends: bool = False
    mixture: "Experts | None" = None
    memory_scale: float = 1.0

    @property
    def caches(self) -> dict[str, Rows]:
        """What it keeps by rows, by name."""
        return {name: kind for name, kind in self.keeps.items() if isinstance(kind, Rows)}

    @property
    def taken(self) -> dict[str, int]:
        """The channels of what it takes of earlier blocks beside the hidden state, by name."""
        return _shared(self.reads) | {**self.takes}

    @property
    def given(self) -> dict[str, int]:
        """The channels of what it gives to later blocks beside the hidden state, by name."""
        return (_shared(self.caches) if self.lends else {}) | {**self.gives}

    @property
    def arguments(self) -> dict[str, HostInput | Kept]:
        """What it takes behind the hidden state, by name and in order."""
        own = {PER_LAYER: self.own} if self.own else {}
        taken = {name: Columns(channels) for name, channels in self.taken.items()}
        return {**self.host, **own, **self.keeps, **self.reads, **taken}

    def results(self, call: CallShape) -> list[str]:
        """The names of what it returns behind the hidden state. Channels first, new rows are lent
        as they are, and returned once."""
        lent = {} if call.layout.tokens == 2 else _shared(self.caches)
        given = [name for name in self.given if name not in lent]
        return [*(f"new_{name}" for name in self.keeps), *(f"{name}_out" for name in given)]


def _shared(caches: Mapping[str, Rows]) -> dict[str, int]:
    """The channels of the new rows of caches as columns, (1, K * D, 1, T)."""
    return {SHARED + name: rows.heads * rows.size for name, rows in caches.items()}


def _ending(name: str) -> str:
    """What tells caches of one size from those of another: "local" of `keys_local`."""
    return name.removeprefix(SHARED).partition("_")[2]


def attention(
    config: DecoderConfig, table: str = "rope", mask: str = "mask", ending: str = ""
) -> BlockSignature:
    """Attention to a cache of keys and values, with a rotary table and a mask of these names.

    ending: of the cache's names, where not all layers have heads of one size.
    """
    D, rows = config.head_dim, Rows(config.num_kv_heads, config.head_dim)
    tables = {f"{table}_cos": Table(D), f"{table}_sin": Table(D)}
    keeps = {f"keys{ending}": rows, f"values{ending}": rows}
    return BlockSignature({**tables, mask: MaskInput(config.group)}, keeps=keeps)


class Signatures:
    """The signatures of all layers, and what follows from several of them.

    names: the kind of each layer. kinds: the signature of each kind. kept: all that layers keep, in
    the order in which packages have it. carried: the channels of all that they pass on.
    """

    def __init__(self, names: Sequence[str], kinds: Mapping[str, BlockSignature]):
        self.names, self.kinds = names, kinds
        kept = [pair for own in kinds.values() for pair in own.keeps.items()]
        given = [pair for own in kinds.values() for pair in own.given.items()]
        kept.sort(key=lambda pair: (ORDER.index(type(pair[1])), _ending(pair[0])))
        self.kept, self.carried = dict(kept), dict(sorted(given, key=lambda pair: _ending(pair[0])))

    def __getitem__(self, layer: int) -> BlockSignature:
        return self.kinds[self.names[layer]]

    def __iter__(self) -> Iterator[BlockSignature]:
        return map(self.kinds.__getitem__, self.names)

    def _all(self, layers: range | None) -> range:
        return range(len(self.names)) if layers is None else layers

    @property
    def mixture(self) -> "Experts | None":
        """The experts of layers that have some, the same in all; None of a dense model."""
        return next((own.mixture for own in self.kinds.values() if own.mixture), None)

    @property
    def mixed(self) -> list[int]:
        """The layers that have a mixture of experts."""
        return [layer for layer, own in enumerate(self) if own.mixture]

    def host(self, layers: range | None = None) -> dict[str, HostInput]:
        """What the host computes for some layers, or all: tables, then masks.

        Of both, a decoder has those of its first layer first, and an encoder those of full layers.
        """
        found = [pair for layer in self._all(layers) for pair in self[layer].host.items()]
        if not self.kept:
            found.sort(key=lambda pair: "_local" in pair[0])
        return dict(sorted(found, key=lambda pair: isinstance(pair[1], MaskInput)))

    def holders(self, layers: range | None = None) -> dict[str, list[int]]:
        """The layers, of these or of all, that keep something from call to call, by its name.

        Layers that read a cache of none of these have a copy, which the first of them keeps.
        """
        found: dict[str, list[int]] = {}
        for name in self.kept:
            own: list[int] = []
            for layer in self._all(layers):
                if name in self[layer].keeps or (not own and name in self[layer].reads):
                    own.append(layer)
            found |= {name: own} if own else {}
        return found

    def handed(self, layer: int) -> dict[str, int]:
        """The channels of what earlier layers give to this one, or to later ones, by name."""
        before, behind = self.names[:layer], self.names[layer:]
        given = {name for kind in before for name in self.kinds[kind].given}
        taken = {name for kind in behind for name in self.kinds[kind].taken}
        return {name: R for name, R in self.carried.items() if name in given & taken}

    def pieces(self, layers: str) -> dict[str, list[tuple[str, ...]]]:
        """The tensors of all layers that files may hold in pieces (`Experts.pieces`); layers: what
        the names of layers begin with."""
        mixed = [(i, own.mixture) for i, own in enumerate(self) if own.mixture]
        parts = [mixture.pieces(f"{layers}.{i}") for i, mixture in mixed]
        return {name: pieces for part in parts for name, pieces in part.items()}
