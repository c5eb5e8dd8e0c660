"""ModernBERT: an encoder whose layers see their neighbours alone, but for every third.

Positions are rotated into queries and keys, by another base in layers that see all of a text; norms
stand before attention and feed-forward, which is a gated GELU; nothing has a bias. The embedding is
normed, so the first layer's attention has no norm of its own, and one follows the last layer.

Letters: see `ane_book.models.base`.

References: Warner et al. 2024 (arXiv 2412.13663); `transformers`, modeling_modernbert.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ane_book.models.base.architecture import FULL, Checkpoint, Parameters, Task, TensorSpec
from ane_book.models.base.sentence import SentenceConfig, TextEncoder, read_sentences
from ane_book.models.base.signature import BlockSignature
from ane_families.alternating import TYPES, Local, LocalConfig, read_kinds

if TYPE_CHECKING:
    from torch import nn


FIRST = "first "  # before the kind of layer 0, which has no norm before attention


class ModernBertConfig(SentenceConfig, LocalConfig):
    """ModernBERT's hyperparameters. `sliding_window`: the tokens that are seen on each side."""


class ModernBert(TextEncoder, Local[ModernBertConfig]):
    """`model_type` "modernbert": ModernBERT Embed, GTE ModernBERT and other sentence encoders."""

    model_type = "modernbert"
    task: Task = "embedding"
    causal = False
    Config = ModernBertConfig
    rope_theta = 160000.0
    scalings = ()
    fixed: ClassVar = {
        "hidden_activation": "gelu",
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
    }

    def read(self, fields: dict) -> dict:
        every = fields.get("global_attn_every_n_layers") or 3
        local = fields.get("rope_local_base_freq") or fields.get("local_rope_theta") or 10000.0
        theta = fields.get("rope_theta") or fields.get("global_rope_theta")
        eps = {"rms_norm_eps": fields.get("norm_eps", 1e-5), "rope_theta": theta}
        return super().read(fields | eps) | {
            "sliding_window": fields.get("local_attention", 128) // 2,
            "rope_local_theta": local,
            "layer_types": read_kinds(fields, lambda i: TYPES[bool(i % every)]),
            "tied_embeddings": True,
            **read_sentences(fields, fields["max_position_embeddings"]),
        }

    def kinds(self, config: ModernBertConfig) -> list[str]:
        first, *rest = config.layer_types
        return [f"{FIRST}{first}", *rest]

    def signature(self, config: ModernBertConfig, kind: str) -> BlockSignature:
        return replace(super().signature(config, kind.removeprefix(FIRST)), keeps={})

    def block(self, config: ModernBertConfig, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base import layers
        from ane_book.models.base.encoder import ACTIVATIONS, LayerNorm
        from ane_families.layers import TextBlock

        def norm() -> "nn.Module":
            return LayerNorm(config.hidden_size, config.norm_epsilon, bias=False)

        return TextBlock(
            layers.DecoderBlock(
                layers.Attention(config, layers.Rotate(config)),
                layers.FeedForward(config, ACTIVATIONS["gelu"]),
                before_attention=None if kind.startswith(FIRST) else norm(),
                before_feed_forward=norm(),
            )
        )

    def ends(self, config: ModernBertConfig) -> "dict[str, nn.Module]":
        from ane_book.models.base.encoder import LayerNorm

        C, eps, found = config.hidden_size, config.norm_epsilon, super().ends(config)
        return found | {end: LayerNorm(C, eps, bias=False) for end in ("first", "last")}

    def parameters(self, config: ModernBertConfig, kind: str = FULL) -> Parameters:
        C, F, _, _ = config.widths
        normed = {"before_attention.weight": (TensorSpec("attn_norm.weight", (C,)),)}
        return {
            **({} if kind.startswith(FIRST) else normed),
            "attention.qkv.weight": (TensorSpec("attn.Wqkv.weight", (3 * C, C)),),
            "attention.out.weight": (TensorSpec("attn.Wo.weight", (C, C)),),
            "before_feed_forward.weight": (TensorSpec("mlp_norm.weight", (C,)),),
            "feed_forward.gate_up.weight": (TensorSpec("mlp.Wi.weight", (2 * F, C)),),
            "feed_forward.down.weight": (TensorSpec("mlp.Wo.weight", (C, F)),),
        }

    def outer(self, config: ModernBertConfig) -> dict[str, TensorSpec]:
        C, matrix = config.hidden_size, (config.vocab_size, config.hidden_size)
        return {
            "embedding": TensorSpec("embeddings.tok_embeddings.weight", matrix),
            "first.weight": TensorSpec("embeddings.norm.weight", (C,)),
            "last.weight": TensorSpec("final_norm.weight", (C,)),
            **self.pooled_tensors(config),
        }

    def checkpoint(self, config: ModernBertConfig) -> Checkpoint:
        left_out = ("head.", "decoder.")  # of a masked language model
        return Checkpoint("layers", base="model.", left_out=left_out)
