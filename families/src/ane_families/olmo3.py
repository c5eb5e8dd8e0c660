"""OLMo 3: as OLMo 2, except that three layers in four have a sliding window.

A context extension (YaRN) is of the full layers alone: sliding layers rotate as they were trained.

References: Olmo 3 (arXiv 2512.13961); `transformers`, modeling_olmo3.py; llama.cpp, which has it as
"olmo2" with a sliding window (`ane_families.olmo2`).
"""

from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, Parameters
from ane_families.alternating import TYPES, Local, LocalConfig, read_kinds
from ane_families.olmo2 import Olmo2

if TYPE_CHECKING:
    from ane_book.models.base.layers import DecoderBlock


class Olmo3(Local[LocalConfig]):
    """`model_type` "olmo3"."""

    model_type = "olmo3"
    rope_theta = 500000.0

    def read(self, fields: dict) -> dict:
        read = super().read(fields)
        local = fields.get("rope_local_base_freq")
        return read | {
            "sliding_window": fields.get("sliding_window", 4096),
            "rope_local_theta": read["rope_theta"] if local is None else local,
            "layer_types": read_kinds(fields, lambda i: TYPES[bool((i + 1) % 4)]),
        }

    def block(self, config: LocalConfig, kind: str = FULL) -> "DecoderBlock":
        return Olmo2().block(config)

    def parameters(self, config: LocalConfig, kind: str = FULL) -> Parameters:
        return Olmo2().parameters(config)
