"""Ministral 3, text only: as Llama, except that queries grow with their position in long contexts.

In token p, queries are multiplied by 1 + beta * log(1 + floor(p / N)), with N the context of before
YaRN's extension, 16,384 in the published models. That is 1 for the first N tokens, so a context of
up to N needs nothing, and a longer one is refused.

References: Ministral 3 (Mistral AI, 2025); `transformers`, modeling_ministral3.py; llama.cpp, which
calls it "mistral3" and beta the temperature scale.
"""

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import GGUF
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense
from ane_book.models.llama import unpermuted

BETA, ORIGINAL = "llama_4_scaling_beta", "original_max_position_embeddings"


def _fields(fields: dict, number) -> dict:
    """Call it "mistral" if queries do not grow: GGUF calls Mistral Small 3 "mistral3" too."""
    beta, scaling = number("attention.temperature_scale", 0), fields["rope_scaling"] or {}
    if not beta:
        return fields | {"model_type": "mistral"}
    own = {BETA: beta, ORIGINAL: fields.get(ORIGINAL)}
    return fields | {"rope_scaling": scaling | own}


class Ministral3(Dense[DecoderConfig]):
    """`model_type` "ministral3": the text model of Ministral 3."""

    model_type = "ministral3"
    gguf = GGUF("mistral3", OUTER, NAMES, _fields, unpermuted)

    def read(self, fields: dict) -> dict:
        scaling = fields["rope_scaling"] or {}
        if scaling.get(BETA) is None or not scaling.get(ORIGINAL):
            raise UnsupportedModel(
                f"config.json: rope_parameters without {BETA} or {ORIGINAL} are not supported for "
                f"{self.model_type} models"
            )
        # YaRN's factor is of the whole context, which is then cut to where queries do not grow.
        whole = {"factor": fields["max_position_embeddings"] / scaling[ORIGINAL]} | scaling
        own = {k: v for k, v in whole.items() if k not in (BETA, "max_position_embeddings")}
        longest = fields["max_position_embeddings"]
        if scaling[BETA]:
            longest = min(longest, scaling[ORIGINAL])
        return super().read(fields | {"rope_scaling": own, "max_position_embeddings": longest}) | {
            "sliding_window": fields.get("sliding_window") or None
        }
