"""LFM2: most layers have a gated short convolution in place of attention. Such a layer, for T
tokens, with K taps:

    x = rms_norm(hidden) * weight                        # (1, C, 1, T)
    before, behind, x = W_in @ x                         # 3 x (1, C, 1, T)
    columns = cat(tail, before * x)                      # (1, C, 1, K-1+T)
    y = sum(columns[i : i + T] * tap[i] for i in K)      # (1, C, 1, T)
    hidden = hidden + W_out @ (behind * y)               # (1, C, 1, T)

and then Llama's feed-forward. It keeps no keys and values, but the K - 1 columns before a call.
The layers of attention are Qwen3's.

References: LFM2 technical report (arXiv 2511.23404); `transformers`, modeling_lfm2.py;
llama.cpp, conversion/lfm2.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from ane_book.layout import Tail
from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import Dense, head_norms, layer_types
from ane_book.models.base.signature import BlockSignature
from ane_families.tensors import Tap
from pydantic import Field

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention
    from torch import nn


CONVOLVED = "convolved"
KINDS = {"full_attention": FULL, "conv": CONVOLVED}  # in config.json -> kind of block
NAMES = {  # Llama's -> LFM2's
    "input_layernorm.weight": "operator_norm.weight",
    "self_attn.o_proj.weight": "self_attn.out_proj.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
}
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}
OPERATORS = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}


class Lfm2Config(DecoderConfig):
    """LFM2's hyperparameters."""

    layer_types: tuple[str, ...]  # FULL or CONVOLVED, of every layer
    taps: Annotated[int, Field(ge=2, le=64)]  # K, tokens that a convolution takes


def fields_of_gguf(fields: dict, number: Callable[..., float]) -> dict:
    return fields | {
        "norm_eps": fields["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,  # the file has the size itself
        "conv_L_cache": number("shortconv.l_cache"),
    }


class Lfm2(Dense[Lfm2Config]):
    """`model_type` "lfm2": the dense text models."""

    model_type = "lfm2"
    gguf: GGUF | None = GGUF("lfm2", OUTSIDE, OPERATORS, fields_of_gguf)
    Config: ClassVar[type[DecoderConfig]] = Lfm2Config
    rope_theta = 1000000.0
    fixed: ClassVar = Dense.fixed | {"conv_bias": False}

    # --- config.json

    def config(self, fields: dict) -> DecoderConfig:
        size = fields.get("block_ff_dim") or fields["intermediate_size"]
        return super().config(fields | {"intermediate_size": _feed_forward(fields, size)})

    def read(self, fields: dict) -> dict:
        indices = fields.get("full_attn_idxs")  # None: all of them

        def default(i: int) -> str:
            return "full_attention" if indices is None or i in indices else "conv"

        types = layer_types(fields, KINDS, default)
        tied = fields.get("tie_word_embeddings", fields.get("tie_embedding", True))
        return super().read(fields | {"rms_norm_eps": fields["norm_eps"]}) | {
            "layer_types": [KINDS[name] for name in types],
            "taps": fields.get("conv_L_cache", 3),
            "tied_embeddings": tied,
        }

    # --- blocks, and what the host gives them

    def kinds(self, config: Lfm2Config) -> list[str]:
        return list(config.layer_types)

    def signature(self, config: Lfm2Config, kind: str) -> BlockSignature:
        if kind != CONVOLVED:
            return super().signature(config, kind)
        return BlockSignature({}, keeps={"gated": Tail(config.hidden_size, config.taps - 1)})

    def block(self, config: Lfm2Config, kind: str = FULL) -> "nn.Module":
        if kind != CONVOLVED:
            return super().block(config, kind)
        from ane_book.models.base import layers
        from ane_families.convolved import GatedConvolution, OperatorBlock

        C, eps = config.hidden_size, config.rms_norm_eps
        return OperatorBlock(
            GatedConvolution(C, config.taps),
            layers.FeedForward(config),
            before_attention=layers.RMSNorm(C, eps),
            before_feed_forward=layers.RMSNorm(C, eps),
        )

    def attention(self, config: Lfm2Config) -> "Attention":
        from ane_book.models.base.layers import Attention, NormThenRotate

        return Attention(config, NormThenRotate(config))

    # --- tensors

    def parameters(self, config: Lfm2Config, kind: str = FULL) -> Parameters:
        norms = head_norms(config, "self_attn.q_layernorm", "self_attn.k_layernorm")
        found = super().parameters(config, kind) | norms
        if kind == CONVOLVED:
            outer = {n: parts for n, parts in found.items() if not n.startswith("attention.")}
            found = _convolution(config) | outer
        return {
            ours: tuple(replace(part, name=NAMES.get(part.name, part.name)) for part in parts)
            for ours, parts in found.items()
        }

    def outer(self, config: Lfm2Config) -> dict[str, TensorSpec]:
        norm = TensorSpec("model.embedding_norm.weight", (config.hidden_size,))
        return super().outer(config) | {"norm": norm}


def _feed_forward(fields: dict, size: int) -> int:
    """The feed-forward's size: what config.json says, or two thirds of it, rounded up."""
    if not fields.get("block_auto_adjust_ff_dim", True):
        return size
    size = 2 * size // 3
    if (factor := fields.get("block_ffn_dim_multiplier", 1.0)) is None:
        return size
    step = fields.get("block_multiple_of", 256)
    return -(-int(factor * size) // step) * step


def _convolution(config: Lfm2Config) -> Parameters:
    C, K = config.hidden_size, config.taps
    taps = {
        f"attention.convolution.taps.{i}": (Tap("conv.conv.weight", (C, 1, K), number=i),)
        for i in range(K)
    }
    return {
        "attention.inward.weight": (TensorSpec("conv.in_proj.weight", (3 * C, C)),),
        **taps,
        "attention.out.weight": (TensorSpec("conv.out_proj.weight", (C, C)),),
    }
