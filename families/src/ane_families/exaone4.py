"""EXAONE 4: as Llama, except for its norms, after attention and feed-forward instead of before and
on each head of queries and keys, and that the larger model has two kinds of layer in turn.

There, layers with a sliding window rotate queries and keys, and layers that attend to all tokens do
not. A model without a window attends to all tokens in every layer, and rotates in every layer.

References: EXAONE 4.0 (arXiv 2507.11407); `transformers`, modeling_exaone4.py; llama.cpp,
conversion/exaone.py.
"""

from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.dense import OUTER, head_norms
from ane_families.alternating import (
    TYPES,
    UNROTATED,
    Alternating,
    AlternatingConfig,
    read_kinds,
)
from ane_families.olmo2 import Olmo2

if TYPE_CHECKING:
    from ane_book.models.base.layers import DecoderBlock


class Exaone4(Alternating[AlternatingConfig]):
    """`model_type` "exaone4": EXAONE 4.0 1.2B and 32B."""

    model_type = "exaone4"
    gguf = GGUF("exaone4", OUTER, Olmo2.gguf.layer)

    def read(self, fields: dict) -> dict:
        window = fields.get("sliding_window", 4096) or None
        pattern = (fields.get("sliding_window_pattern") or 4) if window else 1
        kinds = read_kinds(fields, lambda i: TYPES[bool((i + 1) % pattern)])
        whole = UNROTATED if window else FULL
        return super().read(fields) | {
            "sliding_window": window,
            "layer_types": [whole if kind == FULL else kind for kind in kinds],
        }

    def block(self, config: AlternatingConfig, kind: str = FULL) -> "DecoderBlock":
        from ane_book.models.base import layers

        C, eps = config.hidden_size, config.rms_norm_eps
        return layers.DecoderBlock(
            layers.Attention(config, layers.NormThenRotate(config)),
            layers.FeedForward(config),
            after_attention=layers.RMSNorm(C, eps),
            after_feed_forward=layers.RMSNorm(C, eps),
        )

    def parameters(self, config: AlternatingConfig, kind: str = FULL) -> Parameters:
        C, parts = config.hidden_size, super().parameters(config, kind)
        del parts["before_attention.weight"], parts["before_feed_forward.weight"]
        return parts | {
            **head_norms(config, "self_attn.q_norm", "self_attn.k_norm"),
            "after_attention.weight": (TensorSpec("post_attention_layernorm.weight", (C,)),),
            "after_feed_forward.weight": (TensorSpec("post_feedforward_layernorm.weight", (C,)),),
        }
