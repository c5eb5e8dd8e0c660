"""Granite 3, the dense models: as Llama, except for four scales in `config.json`.

They multiply the embedding, attention's scores, and what attention and feed-forward add to the
residual stream; the logits are divided by the fourth.

References: Granite 3.0 (IBM, 2024); `transformers`, modeling_granite.py; llama.cpp,
convert_hf_to_gguf.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ane_book.host import Host
from ane_book.models.base.architecture import FULL, GGUF
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense
from ane_book.models.llama import unpermuted
from ane_book.rope import Factor

if TYPE_CHECKING:
    from torch import nn


#: Field of config.json -> metadata key of a GGUF.
MULTIPLIERS = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


class GraniteConfig(DecoderConfig):
    """Granite's hyperparameters."""

    embedding_multiplier: Factor
    attention_multiplier: Factor  # scale of the scores, instead of 1 / sqrt(D)
    residual_multiplier: Factor  # multiplies what attention and feed-forward add
    logits_scaling: Factor  # divides the logits


OwnGranite = TypeVar("OwnGranite", bound=GraniteConfig)


def _fields(fields: dict, number) -> dict:
    found = {field: number(key, 0) for field, key in MULTIPLIERS.items()}
    return fields | {field: value for field, value in found.items() if value}


class Granite(Dense[OwnGranite]):
    """`model_type` "granite"."""

    model_type = "granite"
    gguf: GGUF | None = GGUF("granite", OUTER, NAMES, _fields, unpermuted)
    Config: ClassVar[type[DecoderConfig]] = GraniteConfig

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {name: fields.get(name, 1.0) for name in MULTIPLIERS}

    def host(self, config: OwnGranite) -> Host:
        rotary = replace(config.rotary, attention_scale=config.attention_multiplier)
        return Host(
            embedding_scale=config.embedding_multiplier,
            rotary={"rope": rotary},
            masks={"mask": None},
        )

    def block(self, config: OwnGranite, kind: str = FULL) -> "nn.Module":
        from ane_families.layers import Scale

        block = super().block(config, kind)
        block.after_attention = block.after_feed_forward = Scale(config.residual_multiplier)
        return block

    def ends(self, config: OwnGranite) -> "dict[str, nn.Module]":
        from ane_families.layers import ScaledRMSNorm

        scale = 1 / config.logits_scaling
        return {"norm": ScaledRMSNorm(config.hidden_size, config.rms_norm_eps, scale)}
