"""What an architecture is: the interface between its one file and everything that converts it.

A file in `ane_book/models` says of its models what `config.json` means and what of it is refused,
which kinds of block there are and in which order, how a block is composed of `layers.py`,
what its parameters are called in `transformers` and in GGUF, and what is left for the host. All of
it but the blocks themselves is data, so that nothing here imports torch until one is built.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.config import ModelConfig
import numpy as np

if TYPE_CHECKING:
    from ane_book.models.base.experts import Experts
    from torch import nn

__all__ = ["FULL", "GGUF", "Architecture", "Parameters", "Shape", "TensorSpec", "halves"]

Shape = tuple[int, ...]
Task = Literal["text-generation", "embedding", "token-classification"]

FULL = "full"  # the kind of block of most models: attention to all tokens before


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a checkpoint, and how it becomes rows of a parameter of ours."""

    name: str  # as in `transformers`; of a layer's, what follows the layer's number
    shape: Shape  # (out, in) of a matrix
    repeat: int = 1  # so many times in a row: one for all heads, of which ours has one each
    times: float = 1.0  # multiplied with: a scale that the block then need not have
    plus: float = 0.0  # added to it: some norms multiply by 1 more than what is stored
    pairs: int = 0  # D, where rotary pairs are rows 2i and 2i + 1 of a head; ours: i and i + D/2

    @property
    def given(self) -> Shape:
        """The shape of what `rows` gives."""
        return self.repeat * self.shape[0], *self.shape[1:]

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Float32 (with the values of fp16, as `array`), as our parameter has them."""
        if self.pairs:
            array = halves(array, self.pairs)
        if (self.times, self.plus) != (1.0, 0.0):
            array = array * np.float32(self.times) + self.plus
            array = array.astype(np.float16).astype(np.float32)
        return np.tile(array, self.repeat) if self.repeat > 1 else array


def halves(array: np.ndarray, D: int) -> np.ndarray:
    """Rows of heads of size D, rotary pairs 2i and 2i + 1 of each put at i and i + D/2."""
    heads = array.reshape(-1, D // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(array.shape)


#: Of a block, in the order in which they are stored, each with the tensors whose rows it has.
Parameters = dict[str, tuple[TensorSpec, ...]]


@dataclass(frozen=True)
class GGUF:
    """How llama.cpp's converter calls the same models; names without ".weight" or ".bias"."""

    architecture: str  # general.architecture
    outer: dict[str, str]  # of what is around the layers, to the names in `transformers`
    layer: dict[str, str]  # what follows "blk.7." -> what follows "model.layers.7."


class Architecture(ABC):
    """One kind of model. Configurations are of the architecture's own type, with `architecture`,
    its `model_type`, among their fields."""

    model_type: str  # in config.json
    Config: ClassVar[type[ModelConfig]]  # of `config`
    task: Task = "text-generation"  # what its bundles are for: see `ane_book.bundle`
    gguf: GGUF | None = None  # None: llama.cpp has none of that name
    layer_prefix = "model.layers"  # the names of tensors in layer 7 begin with this and ".7."

    #: Fields of config.json of which this library has one value only; any other would be converted
    #: without a word and then answer wrongly.
    fixed: ClassVar[Mapping[str, Any]] = {}

    #: How the names of a block's parameters begin that come after its mixture of experts.
    after_mixture: ClassVar[tuple[str, ...]] = ()

    # --- config.json

    @abstractmethod
    def config(self, fields: dict) -> Any:
        """Read a Hugging Face `config.json`.

        Raises UnsupportedModel for what this library does not have; KeyError, ValidationError and
        what arithmetic raises for a field that is missing or no use.
        """

    def refuse(self, fields: dict) -> None:
        """Raise UnsupportedModel where a field is not what `fixed` says."""
        for name, value in self.fixed.items():
            if fields.get(name) is not None and fields[name] != value:
                raise UnsupportedModel(
                    f"config.json: {name} = {fields[name]!r} is not supported for "
                    f"{self.model_type} models"
                )

    # --- blocks, and what the host gives them

    @abstractmethod
    def kinds(self, config) -> list[str]:
        """The kind of block of every layer, in order."""

    @abstractmethod
    def block(self, config, kind: str = FULL) -> "nn.Module":
        """A block in ANE form, composed of `ane_book.models.base.layers`."""

    def host_inputs(self, kind: str) -> tuple[str, ...]:
        """What a block of this kind takes of the host, in the order of its arguments, after the
        hidden state."""
        return "rope_cos", "rope_sin", "mask"

    def layout(self, config) -> "Experts | None":
        """The experts of a block, of which the parameter names begin with "mixture."; mostly none.

        All blocks have as many.
        """
        return None

    def first(self, config) -> "nn.Module | None":
        """What the first program does before its first layer, to (1, C, 1, T); mostly nothing.

        Its parameters are among `outer`, as "first.weight" and the like.
        """
        return None

    def last(self, config) -> "nn.Module | None":
        """What the last program does after its last layer, where there is no head to follow.

        Its parameters are among `outer`, as "last.norm.weight" and the like.
        """
        return None

    def tails(self, config) -> dict[str, tuple[int, int]]:
        """What a block takes of the tokens just before a call, and gives of the call's own: the
        last W columns of so many channels, by name; see `ane_book.bundle.manifest`."""
        return {}

    def carried(self, config) -> dict[str, int]:
        """What a block hands to the next one beside the hidden state, (1, R, 1, T): R by name.

        The first layer's takes none of it, and so is of a kind of its own.
        """
        return {}

    def final_norm(self, config) -> "nn.Module":
        """What comes before the projection to the vocabulary, of what generates text; its one
        parameter is `weight`."""
        from ane_book.models.base.layers import RMSNorm

        return RMSNorm(config.hidden_size, config.rms_norm_eps)

    @abstractmethod
    def host(self, config) -> Host:
        """What the host computes."""

    # --- tensors

    @abstractmethod
    def parameters(self, config, kind: str = FULL) -> Parameters:
        """A block's parameters."""

    @abstractmethod
    def outer(self, config) -> dict[str, TensorSpec]:
        """The tensors around the layers by their part: `embedding` comes before them."""

    def tensors(self, config) -> dict[str, Shape]:
        """Every tensor by its `transformers` name, in the order of their use."""
        embedding, *rest = self.outer(config).values()
        shapes = {embedding.name: embedding.shape}
        for i, kind in enumerate(self.kinds(config)):
            for parts in self.parameters(config, kind).values():
                shapes |= {f"{self.layer_prefix}.{i}.{part.name}": part.shape for part in parts}
        return shapes | {tensor.name: tensor.shape for tensor in rest}

    def repeats(self, config) -> frozenset[str]:
        """Names under which checkpoints may hold what is in another of `tensors`."""
        return frozenset()

    # --- GGUF

    def from_gguf(self, fields: dict, number: Callable[..., float]) -> dict:
        """The words of a `config.json`, where the metadata of a GGUF say it otherwise.

        fields: what all architectures have in common. number(key, default) reads the metadata.
        """
        return fields

    def rows_of_gguf(self, config, name: str, array: np.ndarray) -> np.ndarray:
        """A tensor of a GGUF as `transformers` has the one of that name."""
        return array
