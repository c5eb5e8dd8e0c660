"""HunYuan dense: as Llama, except that each head of queries and keys is RMS normed after rotation.

References: Hy-MT (arXiv 2512.24092); `transformers`, modeling_hunyuan_v1_dense.py; llama.cpp, which
stores the rope scaling "dynamic" as the larger rotary base that results from it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import FULL, GGUF, Parameters
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense, head_norms
from ane_book.rope import Rotary
from pydantic import model_validator

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention


NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}


class HunYuanConfig(DecoderConfig):
    """HunYuan's hyperparameters."""

    @model_validator(mode="after")
    def _check_factor(self) -> "HunYuanConfig":
        super().rotary.check()
        if not 2**-7 <= abs(self.attention_factor) <= 2**7:  # or eps / factor^2 leaves fp16
            raise ValueError(f"an attention factor of {self.attention_factor} is no use")
        return self

    @property
    def attention_factor(self) -> float:
        """What `transformers` multiplies queries and keys by before it norms them."""
        return super().rotary.attention_factor

    @property
    def rotary(self) -> Rotary:
        """The rotary embedding without its attention factor, which the norm would undo."""
        rotary = super().rotary
        sized = rotary.kind in ("longrope", "yarn")
        own = {"attention_factor": 1.0} if sized else {}
        return replace(rotary, scaling=rotary.scaling | own)


class HunYuan(Dense[HunYuanConfig]):
    """`model_type` "hunyuan_v1_dense"."""

    model_type = "hunyuan_v1_dense"
    gguf = GGUF("hunyuan-dense", OUTER, NAMES | NORMS)
    Config = HunYuanConfig

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

    def attention(self, config: HunYuanConfig) -> "Attention":
        from ane_book.models.base.layers import Attention, RotateThenNorm

        return Attention(config, RotateThenNorm(config, config.attention_factor))

    def parameters(self, config: HunYuanConfig, kind: str = FULL) -> Parameters:
        norms = head_norms(config, "self_attn.query_layernorm", "self_attn.key_layernorm")
        return super().parameters(config, kind) | norms
