"""Mistral: Llama whose tokens see a window of those before them.

References: Jiang et al. 2023 (arXiv 2310.06825); `transformers`, modeling_mistral.py.
"""

from ane_book.models.llama import Llama

__all__ = ["Mistral"]


class Mistral(Llama):
    """Mistral 7B and what else has `model_type` "mistral"; its GGUF says "llama"."""

    model_type = "mistral"
    gguf = None

    def read(self, fields: dict) -> dict:
        # A file that names no window has the one that `transformers` has for it.
        window = fields.get("sliding_window", 4096) or None
        return super().read(fields) | {"sliding_window": window}
