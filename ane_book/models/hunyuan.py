"""HunYuan dense: Llama whose queries and keys are rotated first and then normed, head by head.

References: Hy-MT (arXiv 2512.24092); `transformers`, modeling_hunyuan_v1_dense.py; llama.cpp has
its scaling "dynamic" as the larger base that comes of it.
"""

from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import FULL, GGUF, Tensor
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense, head_norms
from pydantic import model_validator

if TYPE_CHECKING:
    from torch import nn

__all__ = ["HunYuan"]

NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}


class Config(DecoderConfig):
    """A HunYuan in numbers."""

    @model_validator(mode="after")
    def _check_scaling(self) -> "Config":
        if self.rotary.kind == "longrope":
            raise ValueError("longrope scales queries and keys, and the norm after it undoes that")
        return self


class HunYuan(Dense):
    """`model_type` "hunyuan_v1_dense"."""

    model_type = "hunyuan_v1_dense"
    gguf = GGUF("hunyuan-dense", OUTER, NAMES | NORMS)
    Config = Config

    def read_scaling(self, fields: dict) -> dict | None:
        scaling = fields["rope_scaling"] or {}
        if scaling.get("rope_type", scaling.get("type")) != "dynamic":
            return super().read_scaling(fields)
        if not scaling.get("alpha"):
            raise UnsupportedModel(
                f"config.json: rope_scaling of type 'dynamic' without alpha is not supported for "
                f"{self.model_type} models; supported: default, {', '.join(self.scalings)}, and "
                "dynamic with alpha"
            )
        return {k: v for k, v in scaling.items() if k != "type"} | {"rope_type": "dynamic"}

    def attention(self, config: DecoderConfig) -> "nn.Module":
        from ane_book.models.base.layers import Attention, RotateThenNorm

        return Attention(config, RotateThenNorm(config))

    def parameters(self, config: DecoderConfig, kind: str = FULL) -> dict[str, tuple[Tensor, ...]]:
        norms = head_norms(config, "self_attn.query_layernorm", "self_attn.key_layernorm")
        return super().parameters(config, kind) | norms
