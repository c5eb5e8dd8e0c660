"""OLMo 2: as Llama, except for its norms: after attention and feed-forward instead of before,
and on queries and keys, over all heads at once.

References: 2 OLMo 2 Furious (arXiv 2501.00656); `transformers`, modeling_olmo2.py; llama.cpp,
convert_hf_to_gguf.py.
"""

from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense

if TYPE_CHECKING:
    from ane_book.models.base.layers import DecoderBlock


NORMS = {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BEFORE = ("attn_norm", "ffn_norm")  # Llama's norms, which OLMo 2 does not have
WITHOUT = {k: v for k, v in (NAMES | NORMS).items() if k not in BEFORE}


def _fields(fields: dict, number) -> dict:
    """Call it "olmo3" if it has a sliding window: GGUF calls both "olmo2"."""
    if not fields["sliding_window"]:
        return fields
    theta, scaling = fields["rope_theta"], fields["rope_scaling"] or {"rope_type": "default"}
    local = {"rope_theta": number("rope.freq_base_swa", theta), "rope_type": "default"}
    by_type = {"full_attention": {"rope_theta": theta} | scaling, "sliding_attention": local}
    return fields | {"model_type": "olmo3", "rope_parameters": by_type}


class Olmo2(Dense[DecoderConfig]):
    """`model_type` "olmo2"."""

    model_type = "olmo2"
    gguf = GGUF("olmo2", OUTER, WITHOUT, _fields)

    def block(self, config: DecoderConfig, kind: str = FULL) -> "DecoderBlock":
        from ane_book.models.base import layers
        from ane_families.layers import NormedProjection

        C, _, Q, KV = config.widths
        qkv = NormedProjection(C, (Q, KV), KV, config.rms_norm_eps)
        return layers.DecoderBlock(
            layers.Attention(config, layers.Rotate(config), qkv=qkv),
            layers.FeedForward(config),
            after_attention=layers.RMSNorm(C, config.rms_norm_eps),
            after_feed_forward=layers.RMSNorm(C, config.rms_norm_eps),
        )

    def parameters(self, config: DecoderConfig, kind: str = FULL) -> Parameters:
        C, _, Q, KV = config.widths
        parts = super().parameters(config, kind)
        return {
            "attention.qkv.weight": parts["attention.qkv.weight"],
            "attention.qkv.norms.0": (TensorSpec("self_attn.q_norm.weight", (Q,)),),
            "attention.qkv.norms.1": (TensorSpec("self_attn.k_norm.weight", (KV,)),),
            "attention.out.weight": parts["attention.out.weight"],
            "after_attention.weight": (TensorSpec("post_attention_layernorm.weight", (C,)),),
            "feed_forward.gate_up.weight": parts["feed_forward.gate_up.weight"],
            "feed_forward.down.weight": parts["feed_forward.down.weight"],
            "after_feed_forward.weight": (TensorSpec("post_feedforward_layernorm.weight", (C,)),),
        }
