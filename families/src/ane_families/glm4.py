"""GLM 4: as Llama, except for norms before and after attention and feed-forward, and for a rotation
of the first half of each head only, whose pairs are neighbours: (0, 1), (2, 3), ...

Gate and up are one matrix in checkpoints, and queries, keys and values may have biases.

References: GLM-4-0414 (Z.ai, 2025); ChatGLM (arXiv 2406.12793); `transformers`, modeling_glm4.py;
llama.cpp, conversion/glm.py.
"""

from typing import TYPE_CHECKING, ClassVar

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention
    from torch import nn


OWN_NAMES = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}


OWN = ("partial_rotary_factor", "attention_bias")  # fields with any value


class Glm4Config(DecoderConfig):
    """GLM 4's hyperparameters."""

    attention_bias: bool  # queries, keys and values have biases


def _fields(fields: dict, number) -> dict:
    number("rope.dimension_sections", 0)  # GLM-4V's, whose rows llama.cpp reorders, is refused
    return {"partial_rotary_factor": 1.0, "attention_bias": False} | fields


class Glm4(Dense[Glm4Config]):
    """`model_type` "glm4": GLM-4-9B-0414, GLM-4-32B-0414 and GLM-Z1."""

    model_type = "glm4"
    gguf = GGUF("glm4", OUTER, NAMES | OWN_NAMES, _fields)
    Config = Glm4Config
    fixed: ClassVar = {name: value for name, value in Dense.fixed.items() if name not in OWN}

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {
            "partial_rotary_factor": fields.get("partial_rotary_factor") or 0.5,
            "attention_bias": fields.get("attention_bias", True),
        }

    def attention(self, config: Glm4Config) -> "Attention":
        from ane_book.models.base.layers import Attention, Rotate

        return Attention(config, Rotate(config), bias=config.attention_bias)

    def block(self, config: Glm4Config, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base.layers import RMSNorm

        block = super().block(config, kind)
        block.after_attention = RMSNorm(config.hidden_size, config.rms_norm_eps)
        block.after_feed_forward = RMSNorm(config.hidden_size, config.rms_norm_eps)
        return block

    def parameters(self, config: Glm4Config, kind: str = FULL) -> Parameters:
        C, F, _, _ = config.widths
        parts = super().parameters(config, kind) | {
            "attention.qkv.weight": _projections(config, "weight", (C,)),
            "after_attention.weight": (TensorSpec("post_self_attn_layernorm.weight", (C,)),),
            "feed_forward.gate_up.weight": (TensorSpec("mlp.gate_up_proj.weight", (2 * F, C)),),
            "after_feed_forward.weight": (TensorSpec("post_mlp_layernorm.weight", (C,)),),
        }
        if config.attention_bias:
            parts["attention.qkv.bias"] = _projections(config, "bias")
        return parts


def _projections(
    config: Glm4Config, name: str, inputs: tuple[int, ...] = ()
) -> tuple[TensorSpec, ...]:
    """The tensors called `name` of q, k and v, the pairs of q and k moved to where ours are."""
    _, _, Q, KV = config.widths
    D, R = config.head_dim, config.rotary_dim
    return (
        TensorSpec(f"self_attn.q_proj.{name}", (Q, *inputs), pairs=D, rotated=R),
        TensorSpec(f"self_attn.k_proj.{name}", (KV, *inputs), pairs=D, rotated=R),
        TensorSpec(f"self_attn.v_proj.{name}", (KV, *inputs)),
    )
