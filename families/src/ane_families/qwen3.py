"""Qwen3: as Llama, except that each head of queries and keys is RMS normed before rotation.

References: Qwen3 technical report (arXiv 2505.09388); `transformers`, modeling_qwen3.py.
"""

from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, GGUF, Parameters
from ane_book.models.base.dense import NAMES, OUTER, Dense, OwnConfig, head_norms

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention


NORMED = NAMES | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


class Qwen3(Dense[OwnConfig]):
    """`model_type` "qwen3": the dense models."""

    model_type = "qwen3"
    gguf: GGUF | None = GGUF("qwen3", OUTER, NORMED)

    def attention(self, config: OwnConfig) -> "Attention":
        from ane_book.models.base.layers import Attention, NormThenRotate

        return Attention(config, NormThenRotate(config))

    def parameters(self, config: OwnConfig, kind: str = FULL) -> Parameters:
        norms = head_norms(config, "self_attn.q_norm", "self_attn.k_norm")
        return super().parameters(config, kind) | norms
