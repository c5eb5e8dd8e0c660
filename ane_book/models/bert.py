"""BERT: an encoder with bidirectional attention and a norm after each residual sum.

The host adds three embeddings for each token (word, position, type), and the first package norms
the sum. There is no KV cache: a call takes the tokens of one text or of several, and a mask keeps
the texts apart. The output is one vector per token.

Letters: see `ane_book.models.base`; here also P positions.

References: Devlin et al. 2018 (arXiv 1810.04805); `transformers`, modeling_bert.py.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.architecture import FULL, Checkpoint, Parameters, Task, TensorSpec
from ane_book.models.base.config import Layers, Vocabulary, Width
from ane_book.models.base.sentence import (
    Length,
    SentenceConfig,
    TextEncoder,
    read_sentences,
)
from ane_book.models.base.signature import BlockSignature, MaskInput
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")

#: Parameters of a block -> the modules of `transformers` that are stacked in each.
MODULES = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}


class BertConfig(SentenceConfig):
    """The hyperparameters of a BERT encoder."""

    hidden_size: Width  # C
    intermediate_size: Width  # F
    num_layers: Layers
    num_heads: Width  # H
    vocab_size: Vocabulary  # V
    max_position: Length  # P
    token_types: Width
    layer_norm_eps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    activation: str
    skipped: Annotated[int, Field(ge=0, le=1 << 14)] = 0  # positions that no token has

    @model_validator(mode="after")
    def _check(self) -> "BertConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"{self.hidden_size} channels do not divide by {self.num_heads} heads")
        return self

    @property
    def norm_epsilon(self) -> float:
        return self.layer_norm_eps


class Bert(TextEncoder):
    """`model_type` "bert": BERT, MiniLM, BGE, E5, GTE and other sentence encoders."""

    model_type = "bert"
    task: Task = "embedding"
    causal = False
    Config = BertConfig
    fixed: ClassVar = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }

    def read(self, fields: dict) -> dict:
        if (activation := fields.get("hidden_act", "gelu")) not in ACTIVATIONS:
            raise UnsupportedModel(
                f"config.json: hidden_act = {activation!r} is not supported for bert models; "
                f"supported: {', '.join(ACTIVATIONS)}"
            )
        skipped = self.skipped(fields)
        positions = fields["max_position_embeddings"] - skipped
        return read_sentences(fields, positions) | {
            "architecture": self.name,
            "hidden_size": fields["hidden_size"],
            "intermediate_size": fields["intermediate_size"],
            "num_layers": fields["num_hidden_layers"],
            "num_heads": fields["num_attention_heads"],
            "vocab_size": fields["vocab_size"],
            "max_position": positions,
            "skipped": skipped,
            "token_types": fields.get("type_vocab_size", 2),
            "layer_norm_eps": fields.get("layer_norm_eps", 1e-12),
            "activation": activation,
        }

    def skipped(self, fields: dict) -> int:
        """How many positions come before that of a text's first token."""
        return 0

    def signature(self, config: BertConfig, kind: str) -> BlockSignature:
        return BlockSignature({"mask": MaskInput()})

    def block(self, config: BertConfig, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base.encoder import EncoderBlock

        C, F, H = config.hidden_size, config.intermediate_size, config.num_heads
        return EncoderBlock(C, F, H, config.activation, config.layer_norm_eps)

    def ends(self, config: BertConfig) -> "dict[str, nn.Module]":
        from ane_book.models.base.encoder import LayerNorm

        first = LayerNorm(config.hidden_size, config.layer_norm_eps)
        return {"first": first} | super().ends(config)

    def host(self, config: BertConfig) -> Host:
        return Host(rotary={}, masks={})

    def parameters(self, config: BertConfig, kind: str = FULL) -> Parameters:
        C, F = config.hidden_size, config.intermediate_size
        shapes = {"qkv": (C, C), "out": (C, C), "up": (F, C), "down": (C, F)}
        scale = (C // config.num_heads) ** -0.5  # of the scores, which the queries carry
        times = {"attention.self.query": scale}
        found = {}
        for part, modules in MODULES.items():
            shape = shapes.get(part, (C,))
            for name, size in (("weight", shape), ("bias", shape[:1])):
                found[f"{part}.{name}"] = tuple(
                    TensorSpec(f"{module}.{name}", size, times=times.get(module, 1.0))
                    for module in modules
                )
        return found

    def outer(self, config: BertConfig) -> dict[str, TensorSpec]:
        C = config.hidden_size
        return {
            "embedding": TensorSpec("embeddings.word_embeddings.weight", (config.vocab_size, C)),
            "positions": TensorSpec(
                "embeddings.position_embeddings.weight",
                (config.skipped + config.max_position, C),
            ),
            "types": TensorSpec("embeddings.token_type_embeddings.weight", (config.token_types, C)),
            "first.weight": TensorSpec("embeddings.LayerNorm.weight", (C,)),
            "first.bias": TensorSpec("embeddings.LayerNorm.bias", (C,)),
            **self.pooled_tensors(config),
        }

    def checkpoint(self, config: BertConfig) -> Checkpoint:
        """Sentence vectors need neither position ids nor the pooler's layer."""
        unused = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
        return Checkpoint("encoder.layer", base="bert.", repeats=frozenset(unused))
