"""`Architecture`, the interface between a model's file and everything that converts models.

A file in `ane_book/models` subclasses it and says: what the fields of `config.json` mean and which
values are refused; which kind of block each layer is; how a block is built from `layers.py`; what
the parameters are called in `transformers` and in GGUF; and what the host computes. Everything but
the blocks is data, so nothing here imports torch until a block is built.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.layout import MEMORY
from ane_book.models.base.config import ModelConfig
import numpy as np

if TYPE_CHECKING:
    from ane_book.models.base.experts import Experts
    from torch import nn


Shape = tuple[int, ...]
Task = Literal["text-generation", "embedding", "token-classification"]

FULL = "full"  # the kind of block of most models: attention to all tokens before
CACHE = ("keys", "values")  # what such a block keeps from call to call
SHARED = "shared_"  # before a cache's name: its new rows, which layers without their own take


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a checkpoint, and how to turn it into rows of one of our parameters."""

    name: str  # as in `transformers`; for a tensor of a layer, without "model.layers.7."
    shape: Shape  # as in the checkpoint; (out, in) for a matrix
    repeat: int = 1  # tile it so often: the heads share a weight that ours has once per head
    times: float = 1.0  # multiply it: folds a scale into the weight, so the block needs none
    plus: float = 0.0  # add to it: some norms multiply by 1 + weight
    pairs: int = 0  # D where a head's rotary pairs are rows 2i and 2i + 1 (ours: i and i + R/2)
    rotated: int = 0  # R with `pairs`, if it is not D
    half: tuple[int, int] | None = None  # (D, i): take part i of every 2 D rows, D rows
    tap: int | None = None  # take this one of a depthwise convolution, (channels, 1, taps)

    @property
    def given(self) -> Shape:
        """The shape of the array that `rows` returns."""
        if self.tap is not None:
            return self.shape[:1]
        if self.half is not None:
            return self.shape[0] // 2, *self.shape[1:]
        return self.repeat * self.shape[0], *self.shape[1:]

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Convert the checkpoint's array to our parameter's rows: float32 holding fp16 values."""
        if self.tap is not None:
            return np.ascontiguousarray(array[:, 0, self.tap])
        if self.half is not None:
            D, part = self.half
            return array.reshape(-1, 2, D, *array.shape[1:])[:, part].reshape(self.given)
        if self.pairs:
            array = halves(array, self.pairs, self.rotated)
        if (self.times, self.plus) != (1.0, 0.0):
            array = array * np.float32(self.times) + self.plus
            array = array.astype(np.float16).astype(np.float32)
        return np.tile(array, self.repeat) if self.repeat > 1 else array


def halves(array: np.ndarray, D: int, R: int = 0) -> np.ndarray:
    """Reorder the first R rows, or all, of each head of size D: rotary pair 2i, 2i + 1 moves to i,
    i + R/2."""
    heads = array.reshape(-1, D, *array.shape[1:])
    turned = heads[:, : R or D]
    pairs = turned.reshape(len(heads), -1, 2, *array.shape[1:]).swapaxes(1, 2)
    whole = np.concatenate([pairs.reshape(turned.shape), heads[:, R or D :]], axis=1)
    return whole.reshape(array.shape)


#: A block's parameters in storage order -> the checkpoint tensors that are stacked in each.
Parameters = dict[str, tuple[TensorSpec, ...]]


@dataclass(frozen=True)
class GGUF:
    """Names in a GGUF file -> names in `transformers`, without ".weight" or ".bias" unless the two
    differ in it. A * is the number of an expert, whose tensors are a stack in a GGUF."""

    architecture: str  # the metadata's `general.architecture`
    outer: dict[str, str]  # tensors outside of the layers
    layer: dict[str, str]  # what follows "blk.7." -> what follows "model.layers.7."


class Architecture(ABC):
    """One model family. `config` below is always an instance of the family's own `Config`, whose
    field `architecture` is the family's `name`."""

    model_type: str  # as in config.json
    variant = ""  # tells apart the architectures of one `model_type` that differ in their task
    Config: ClassVar[type[ModelConfig]]  # the type of what `config` returns
    task: Task = "text-generation"  # what its bundles are for: see `ane_book.bundle`
    causal = True  # whether a token sees those before it alone
    gguf: GGUF | None = None  # None: llama.cpp has no architecture of its own for it
    layer_prefix = "model.layers"  # the names of layer 7's tensors begin with this and ".7."
    left_out: tuple[str, ...] = ()  # prefixes of a checkpoint's tensors that are of another model
    #: A prefix that a checkpoint's names have or lack, by the class that saved it.
    base_prefix = ""

    #: Fields of config.json for which this library supports one value only. A model with another
    #: value would convert without an error and then give wrong answers.
    fixed: ClassVar[Mapping[str, Any]] = {}

    #: Prefixes of the parameters of a block that are applied after its mixture of experts.
    after_mixture: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """The name that its configurations have: `model_type`, with the variant behind it."""
        return f"{self.model_type}-{self.variant}" if self.variant else self.model_type

    # --- config.json

    @abstractmethod
    def config(self, fields: dict) -> Any:
        """Parse the fields of a Hugging Face `config.json`.

        Raises UnsupportedModel for a value that this library does not support. A missing or
        invalid field raises KeyError, ValidationError or an arithmetic error.
        """

    def refuse(self, fields: dict) -> None:
        """Raise UnsupportedModel if a field has another value than `fixed` says."""
        for name, value in self.fixed.items():
            if fields.get(name) is not None and fields[name] != value:
                raise UnsupportedModel(
                    f"config.json: {name} = {fields[name]!r} is not supported for "
                    f"{self.model_type} models"
                )

    # --- blocks, and what the host gives them

    @abstractmethod
    def kinds(self, config) -> list[str]:
        """The kind of block of each layer, in order."""

    @abstractmethod
    def block(self, config, kind: str = FULL) -> "nn.Module":
        """Build a block in ANE form from `ane_book.models.base.layers`."""

    def host_inputs(self, kind: str) -> tuple[str, ...]:
        """The inputs that the host computes for a block of this kind, in the order of its
        arguments after the hidden state."""
        return "rope_cos", "rope_sin", "mask"

    def group(self, config, mask: str) -> int:
        """G of the layers that take a mask of this name."""
        return config.group

    def per_layer(self, config) -> int:
        """P, the channels of the input `PER_LAYER` (1, P, 1, T) that every layer has of its own;
        0 for most models. What it holds depends on the token alone: see `per_layer_rows`."""
        return 0

    def per_layer_rows(
        self,
        config,
        read: Callable[[str], np.ndarray],
        embedding: np.ndarray,
        table: Iterator[np.ndarray],
    ) -> Iterator[np.ndarray]:
        """Yield what tokens give to all layers, rows (n, L * P) float32, some tokens at a time.

        read(name) gives a tensor by its `transformers` name; embedding: (V, C), fp16; table: the
        rows of the tensor `per_layer.table`, in order.
        """
        return table

    def layout(self, config) -> "Experts | None":
        """The mixture of experts of blocks that have one, the same in all; None for a dense model.

        The names of its parameters begin with "mixture.".
        """
        return None

    def mixed(self, config) -> list[int]:
        """The layers that have a mixture of experts."""
        kinds = self.kinds(config)
        having = {
            kind
            for kind in set(kinds if self.layout(config) else ())
            if any(name.startswith("mixture.") for name in self.parameters(config, kind))
        }
        return [i for i, kind in enumerate(kinds) if kind in having]

    def first(self, config) -> "nn.Module | None":
        """The module that the first package applies to (1, C, 1, T) before layer 0, or None.

        Its parameters are in `outer`, with keys such as "first.weight".
        """
        return None

    def last(self, config) -> "nn.Module | None":
        """The module that the last package applies after the last layer of a model without a
        vocabulary head, or None.

        Its parameters are in `outer`, with keys such as "last.norm.weight".
        """
        return None

    def pooled(self, config) -> "nn.Module | None":
        """The module that a package of its own applies to texts' pooled columns (1, C, 1, T), one
        a text, or None.

        Its parameters are in `outer`, with keys such as "pooled.dense.weight".
        """
        return None

    def tails(self, config) -> dict[str, tuple[int, int]]:
        """The (channels, W) of each tail by name; {} for most models.

        A tail is the last W columns of an activation, one column per token. A block takes the
        tail of the call before as an input and returns this call's columns, so that a convolution
        can reach across the border between calls; see `ane_book.bundle.manifest`.
        """
        return {}

    def memory(self, config) -> tuple[int, int, int] | None:
        """The shape (H, Dv, Dk) of what a block takes as `MEMORY` and returns anew: one size
        whatever the number of tokens. The host input `real` (1, 1, 1, T) says which columns are
        tokens and no padding, which must leave it as it is. None for most models."""
        return None

    def caches(self, config) -> dict[str, tuple[int, int]]:
        """K and D of each cache by name: of keys and values, and of those of other layers where
        their heads are others."""
        return dict.fromkeys(CACHE, (config.num_kv_heads, config.head_dim))

    def kept(self, config, kind: str) -> tuple[str, ...]:
        """The names of what a block of this kind keeps from call to call, in the order of its
        arguments: the cache's keys and values, tails, and the memory."""
        return *CACHE, *self.tails(config)

    def borrowed(self, config, kind: str) -> tuple[str, ...]:
        """The caches that a block of this kind reads and does not write, in the order of its
        arguments, behind what it keeps: those of the last layer before it that keeps them.

        The new rows of that layer are carried to it: (1, K * D, 1, T), as `SHARED` and the name.
        """
        return ()

    def holders(self, config, layers: range | None = None) -> dict[str, list[int]]:
        """The layers, of these or of all, that keep something from call to call, by its name.

        Layers that borrow a cache of none of these have a copy, which the first of them keeps.
        """
        kinds, found = self.kinds(config), dict[str, list[int]]()
        for name in (*self.caches(config), *self.tails(config), MEMORY):
            own: list[int] = []
            for i in layers or range(len(kinds)):
                copies = not own and name in self.borrowed(config, kinds[i])
                own += [i] if copies or name in self.kept(config, kinds[i]) else []
            found |= {name: own} if own else {}
        return found

    def carried(self, config) -> dict[str, int]:
        """The channels R of each activation (1, R, 1, T), by name, that blocks pass to later ones
        beside the hidden state; {} for most models."""
        return {}

    def takes(self, config, kind: str) -> tuple[str, ...]:
        """What a block of this kind takes of `carried`, in the order of its arguments: all of it,
        but for layer 0, whose block needs a kind of its own."""
        return () if kind == self.kinds(config)[0] else tuple(self.carried(config))

    def gives(self, config, kind: str) -> tuple[str, ...]:
        """What a block of this kind returns of `carried`, in order."""
        return tuple(self.carried(config))

    def handed(self, config, layer: int) -> tuple[str, ...]:
        """What the layers before this one pass to it, or to later ones, of `carried`."""
        kinds = self.kinds(config)
        given = {name for kind in kinds[:layer] for name in self.gives(config, kind)}
        taken = {name for kind in kinds[layer:] for name in self.takes(config, kind)}
        return tuple(name for name in self.carried(config) if name in given & taken)

    def softcap(self, config) -> float | None:
        """The bound of logits: they are softcap * tanh(logits / softcap); None for most models."""
        return None

    def final_norm(self, config) -> "nn.Module":
        """The norm before the vocabulary projection of a text generator; its one parameter is
        `weight`."""
        from ane_book.models.base.layers import RMSNorm

        return RMSNorm(config.hidden_size, config.rms_norm_eps)

    @abstractmethod
    def host(self, config) -> Host:
        """What the host computes: embedding scale, rotary tables, masks."""

    # --- tensors

    @abstractmethod
    def parameters(self, config, kind: str = FULL) -> Parameters:
        """The parameters of a block of this kind, and the checkpoint tensors in each."""

    @abstractmethod
    def outer(self, config) -> dict[str, TensorSpec]:
        """The tensors outside of the layers by their role, `embedding` first."""

    def tensors(self, config) -> dict[str, Shape]:
        """The shape of every tensor by its `transformers` name, in the order of use."""
        embedding, *rest = self.outer(config).values()
        shapes = {embedding.name: embedding.shape}
        for i, kind in enumerate(self.kinds(config)):
            for parts in self.parameters(config, kind).values():
                shapes |= {f"{self.layer_prefix}.{i}.{part.name}": part.shape for part in parts}
        return shapes | {tensor.name: tensor.shape for tensor in rest}

    def pieces(self, config) -> dict[str, list[tuple[str, ...]]]:
        """The tensors that files may hold in pieces: of each item along the first axis, by the
        tensor's name, the matrices whose rows are one below the other; {} for most models."""
        return {}

    def repeats(self, config) -> frozenset[str]:
        """Tensors that a checkpoint may hold but that are not needed, such as a tied head."""
        return frozenset()

    # --- GGUF

    def from_gguf(self, fields: dict, number: Callable[..., float]) -> dict:
        """Adapt the `config.json` fields of a GGUF to what this architecture stores its own way.

        fields: those that all architectures share. number(key, default) reads the metadata.
        """
        return fields

    def rows_of_gguf(self, config, name: str, array: np.ndarray) -> np.ndarray:
        """Convert a tensor read from a GGUF to what `transformers` stores under `name`."""
        return array
