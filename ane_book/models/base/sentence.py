"""What encoders of texts share: how a text's token vectors become one, and what follows then.

A text's vector is made of the last layer's columns: they are pooled, and the `Dense` layers of
sentence-transformers, if the model has any, run on the result.

References: Reimers and Gurevych 2019 (arXiv 1908.10084); sentence-transformers' modules
(`ane_book.weights.sentences`).
"""

from typing import TYPE_CHECKING, Annotated, Literal

from ane_book.models.base.architecture import Architecture, TensorSpec
from ane_book.models.base.config import ModelConfig, Width
from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from torch import nn

Length = Annotated[int, Field(gt=0, le=1 << 14)]  # a mask has its square
LONGEST = 2048  # tokens of a text, where nobody asks for more


class DenseLayer(BaseModel):
    """A layer of sentence-transformers' `Dense`: activation(W x + b) of a pooled column."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str  # its tensors' names begin with this
    inputs: Width
    outputs: Width
    bias: bool
    activation: Literal["identity", "tanh", "gelu", "relu"]


class SentenceConfig(ModelConfig):
    """The hyperparameters of an encoder of texts beside those of its layers."""

    pooling: Literal["mean", "cls", "last"] = "mean"  # how a text's token vectors become one
    max_tokens: Length  # a longer text is cut off
    prompts: dict[str, str] = Field(default={})  # what stands before a text, by name
    default_prompt: str | None = None  # the name of the one that does if none is asked for
    dimensions: Width | None = None  # vectors are cut to so many numbers
    dense: tuple[DenseLayer, ...] = ()

    @model_validator(mode="after")
    def _check_sentence(self) -> "SentenceConfig":
        positions = getattr(self, "max_position", self.max_tokens)
        if self.max_tokens > positions:
            raise ValueError(f"texts of {self.max_tokens} tokens do not fit {positions} positions")
        sizes = [layer.inputs for layer in self.dense], [layer.outputs for layer in self.dense]
        if self.dense and sizes[0] != [getattr(self, "hidden_size", 0), *sizes[1][:-1]]:
            raise ValueError(f"Dense layers of {sizes[0]} to {sizes[1]} channels do not fit")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ValueError(f"default_prompt_name {self.default_prompt!r} names no prompt")
        return self


def read_sentences(fields: dict, positions: int) -> dict:
    """The fields of `SentenceConfig` from what `sentence_settings` put into a `config.json`.

    positions: how many tokens the model takes. Without settings texts have 512 tokens at most.
    """
    found = fields.get("sentence_transformers", {})
    if not isinstance(found, dict):
        raise TypeError("sentence_transformers is not an object")
    length = found.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"max_seq_length = {length!r} is no number of tokens")
    own = {name: found[name] for name in SentenceConfig.model_fields if name in found}
    return own | {"max_tokens": min(length or 512, LONGEST if length else positions)}


class TextEncoder(Architecture):
    """What architectures with a `SentenceConfig` add: a module for pooled columns."""

    def ends(self, config) -> "dict[str, nn.Module]":
        from ane_book.models.base.encoder import DenseLayers

        pooled = {"pooled": DenseLayers(config.dense)} if config.dense else {}
        return super().ends(config) | pooled

    def pooled_tensors(self, config: SentenceConfig) -> dict[str, TensorSpec]:
        """The part of `outer` that is of the module for pooled columns."""
        found = {}
        for i, layer in enumerate(config.dense):
            name, shape = f"pooled.layers.{i}", (layer.outputs, layer.inputs)
            found[f"{name}.weight"] = TensorSpec(f"{layer.folder}.linear.weight", shape)
            if layer.bias:
                found[f"{name}.bias"] = TensorSpec(f"{layer.folder}.linear.bias", shape[:1])
        return found
