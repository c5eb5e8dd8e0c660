"""Phi-3 and Phi-4-mini: as Llama, except that checkpoints store qkv and gate_up fused, that part of
each head may stay unrotated, and that there may be a sliding window.

References: Phi-3 technical report (arXiv 2404.14219); `transformers`, modeling_phi3.py.
"""

from typing import ClassVar

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, rope_type
from ane_book.models.base.dense import NAMES, OUTER, Dense

ORIGINAL = 4096  # the original context in tokens, if config.json names none
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


class Phi3(Dense[DecoderConfig]):
    """`model_type` "phi3": Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini."""

    model_type = "phi3"
    gguf = GGUF("phi3", OUTER, NAMES | FUSED)
    fixed: ClassVar = {k: v for k, v in Dense.fixed.items() if k != "partial_rotary_factor"}

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {
            "partial_rotary_factor": fields.get("partial_rotary_factor") or 1.0,
            "sliding_window": fields.get("sliding_window") or None,
        }

    def read_scaling(self, fields: dict) -> dict | None:
        """Also accept LongRoPE under its earlier names, and take the original context from the top
        level only, as `transformers` does for this family."""
        given, name = fields["rope_scaling"], "original_max_position_embeddings"
        if given is None:
            return None
        if rope_type(given) == "yarn" and "short_factor" in given:
            given = given | {"rope_type": "longrope"}
        own = {"rope_scaling": given, name: fields.get(name) or ORIGINAL}
        return super().read_scaling(fields | own)

    def parameters(self, config: DecoderConfig, kind: str = FULL) -> Parameters:
        C, F, Q, KV = config.widths
        return super().parameters(config, kind) | {
            "attention.qkv.weight": (TensorSpec("self_attn.qkv_proj.weight", (Q + 2 * KV, C)),),
            "feed_forward.gate_up.weight": (TensorSpec("mlp.gate_up_proj.weight", (2 * F, C)),),
        }
