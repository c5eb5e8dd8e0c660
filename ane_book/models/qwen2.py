"""Qwen2 and Qwen2.5: as Llama, except that queries, keys and values have biases.

References: Qwen2.5 technical report (arXiv 2412.15115); `transformers`, modeling_qwen2.py.
"""

from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention


class Qwen2(Dense[DecoderConfig]):
    """`model_type` "qwen2". A sliding window, which no published model uses, is refused."""

    model_type = "qwen2"
    gguf = GGUF("qwen2", OUTER, NAMES)
    fixed = Dense.fixed | {"attention_bias": True}

    def attention(self, config: DecoderConfig) -> "Attention":
        from ane_book.models.base.layers import Attention, Rotate

        return Attention(config, Rotate(config), bias=True)

    def parameters(self, config: DecoderConfig, kind: str = FULL) -> Parameters:
        _, _, Q, KV = config.widths
        biases = (
            TensorSpec("self_attn.q_proj.bias", (Q,)),
            TensorSpec("self_attn.k_proj.bias", (KV,)),
            TensorSpec("self_attn.v_proj.bias", (KV,)),
        )
        return super().parameters(config, kind) | {"attention.qkv.bias": biases}
