"""Ministral: as Mistral, except that `config.json` says of each layer whether it has the window.

References: Ministral 8B (Mistral AI, 2024); `transformers`, modeling_ministral.py.
"""

from ane_families.alternating import TYPES, Alternating, AlternatingConfig, read_kinds


class Ministral(Alternating[AlternatingConfig]):
    """`model_type` "ministral". llama.cpp has no architecture for it."""

    model_type = "ministral"

    def read(self, fields: dict) -> dict:
        # Where the field is missing, `transformers` takes 4096; null means no window.
        window = fields.get("sliding_window", 4096) or None
        return super().read(fields) | {
            "sliding_window": window,
            "layer_types": read_kinds(fields, lambda i: TYPES[window is not None]),
        }
