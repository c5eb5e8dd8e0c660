"""`Architecture`, the interface between a model's file and everything that converts models.

A file in `ane_book/models` subclasses it and says: what the fields of `config.json` mean and which
values are refused; which kind of block each layer is; how a block is built from `layers.py`; what
the parameters are called in `transformers` and in GGUF; and what the host computes. Everything but
the blocks is data, so nothing here imports torch until a block is built.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.config import ModelConfig, plain_rope
from ane_book.models.base.signature import BlockSignature, Signatures, attention
import numpy as np

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]
Task = Literal["text-generation", "embedding", "token-classification"]

FULL = "full"  # the kind of block of most models: attention to all tokens before


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

    @property
    def given(self) -> Shape:
        """The shape of the array that `rows` returns."""
        return self.repeat * self.shape[0], *self.shape[1:]

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Convert the checkpoint's array to our parameter's rows: float32 holding fp16 values."""
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
    """How a GGUF file tells what a checkpoint of `transformers` does. Names are without ".weight"
    or ".bias" unless the two differ in it; a * is the number of an expert, whose tensors are a
    stack in a GGUF.

    fields: adapts the fields of config.json, those that all architectures share, to what this one
    stores its own way; its second argument, number(key, default), reads the metadata. rows: makes
    of a tensor what `transformers` stores under its name, for a model's config.
    """

    architecture: str  # the metadata's `general.architecture`
    outer: dict[str, str]  # tensors outside of the layers -> names in `transformers`
    layer: dict[str, str]  # what follows "blk.7." -> what follows "model.layers.7."
    fields: Callable[[dict, Callable[..., float]], dict] = lambda fields, number: fields
    rows: Callable[[Any, str, np.ndarray], np.ndarray] = lambda config, name, array: array


@dataclass(frozen=True)
class Checkpoint:
    """How a checkpoint of `transformers` names its tensors."""

    layers: str = "model.layers"  # the names of layer 7's tensors begin with this and ".7."
    base: str = ""  # a prefix that names have or lack, by the class that saved it
    left_out: tuple[str, ...] = ()  # prefixes of tensors that are of another model
    repeats: frozenset[str] = frozenset()  # tensors that are not needed, such as a tied head


class Architecture(ABC):
    """One model family. `config` below is always an instance of the family's own `Config`, whose
    field `architecture` is the family's `name`."""

    model_type: str  # as in config.json
    variant = ""  # tells apart the architectures of one `model_type` that differ in their task
    Config: ClassVar[type[ModelConfig]]  # the type of what `config` returns
    task: Task = "text-generation"  # what its bundles are for: see `ane_book.bundle`
    causal = True  # whether a token sees those before it alone
    gguf: GGUF | None = None  # None: llama.cpp has no architecture of its own for it

    #: Fields of config.json for which this library supports one value only. A model with another
    #: value would convert without an error and then give wrong answers.
    fixed: ClassVar[Mapping[str, Any]] = {}

    @property
    def name(self) -> str:
        """The name that its configurations have: `model_type`, with the variant behind it."""
        return f"{self.model_type}-{self.variant}" if self.variant else self.model_type

    # --- config.json

    def config(self, fields: dict) -> Any:
        """Parse the fields of a Hugging Face `config.json`.

        Raises UnsupportedModel for a value that this library does not support. A missing or
        invalid field raises KeyError, ValidationError or an arithmetic error.
        """
        fields = plain_rope(fields)
        for name, value in self.fixed.items():
            if fields.get(name) is not None and fields[name] != value:
                raise UnsupportedModel(
                    f"config.json: {name} = {fields[name]!r} is not supported for "
                    f"{self.model_type} models"
                )
        return self.Config(**self.read(fields))

    @abstractmethod
    def read(self, fields: dict) -> dict:
        """Translate the fields of a `config.json`, after `plain_rope`, to those of `Config`."""

    # --- blocks, and what the host gives them

    def kinds(self, config) -> list[str]:
        """The kind of block of each layer, in order."""
        return [FULL] * config.num_layers

    @abstractmethod
    def block(self, config, kind: str = FULL) -> "nn.Module":
        """Build a block in ANE form from `ane_book.models.base.layers`."""

    def signature(self, config, kind: str) -> BlockSignature:
        """What a block of this kind takes, keeps and gives."""
        return attention(config)

    def signatures(self, config) -> Signatures:
        """The signatures of all layers."""
        kinds = self.kinds(config)
        own = {kind: self.signature(config, kind) for kind in dict.fromkeys(kinds)}
        return Signatures(kinds, own)

    def ends(self, config) -> "dict[str, nn.Module]":
        """The modules before and behind the layers.

            first    what the first package applies to (1, C, 1, T) before layer 0
            last     what the last package applies after the last layer, where there is no norm
            pooled   what a package applies to texts' pooled columns (1, C, 1, T), one a text
            norm     before the vocabulary projection; its one parameter is `weight`
            bound    of the logits; it changes no winner

        The parameters of the first three are in `outer`, with keys such as "first.weight".
        """
        return {}

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
        shapes, prefix = {embedding.name: embedding.shape}, self.checkpoint(config).layers
        for i, kind in enumerate(self.kinds(config)):
            for parts in self.parameters(config, kind).values():
                shapes |= {f"{prefix}.{i}.{part.name}": part.shape for part in parts}
        return shapes | {tensor.name: tensor.shape for tensor in rest}

    def checkpoint(self, config) -> Checkpoint:
        """How checkpoints name the tensors."""
        return Checkpoint()
