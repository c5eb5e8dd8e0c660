"""OLMo 3: as OLMo 2, except that three layers in four have a sliding window.

A context extension (YaRN) is of the full layers alone: sliding layers rotate as they were trained.

References: Olmo 3 (arXiv 2512.13961); `transformers`, modeling_olmo3.py; llama.cpp, which has it as
"olmo2" with a sliding window (`Olmo2.from_gguf`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ane_book.host import Host
from ane_book.models.base.alternating import (
    SLIDING,
    TYPES,
    Alternating,
    AlternatingConfig,
    read_kinds,
    split_rope,
)
from ane_book.models.base.architecture import FULL, Parameters
from ane_book.models.base.config import Count, DecoderConfig, Real
from ane_book.models.olmo2 import Olmo2

if TYPE_CHECKING:
    from ane_book.models.base.layers import DecoderBlock

__all__ = ["Olmo3"]


class Olmo3Config(AlternatingConfig):
    """OLMo 3's hyperparameters."""

    sliding_window: Count
    rope_local_theta: Real  # rotary base of the sliding layers


class Olmo3(Alternating[Olmo3Config]):
    """`model_type` "olmo3"."""

    model_type = "olmo3"
    Config = Olmo3Config
    rope_theta = 500000.0

    def config(self, fields: dict) -> DecoderConfig:
        return super().config(split_rope(fields, self.model_type))

    def read(self, fields: dict) -> dict:
        read = super().read(fields)
        local = fields.get("rope_local_base_freq")
        return read | {
            "sliding_window": fields.get("sliding_window", 4096),
            "rope_local_theta": read["rope_theta"] if local is None else local,
            "layer_types": read_kinds(fields, lambda i: TYPES[bool((i + 1) % 4)]),
        }

    def host_inputs(self, kind: str) -> tuple[str, ...]:
        if kind == SLIDING:
            return "rope_local_cos", "rope_local_sin", "mask_local"
        return super().host_inputs(kind)

    def host(self, config: Olmo3Config) -> Host:
        local = replace(config.rotary, theta=config.rope_local_theta, scaling={})
        return Host(
            rotary={"rope": config.rotary, "rope_local": local},
            masks={"mask": None, "mask_local": config.sliding_window},
        )

    def block(self, config: Olmo3Config, kind: str = FULL) -> "DecoderBlock":
        return Olmo2().block(config)

    def parameters(self, config: Olmo3Config, kind: str = FULL) -> Parameters:
        return Olmo2().parameters(config)
