"""Mistral: as Llama, except that a token attends to a sliding window of the tokens before it.

References: Jiang et al. 2023 (arXiv 2310.06825); `transformers`, modeling_mistral.py.
"""

from ane_book.models.llama import Llama


class Mistral(Llama):
    """`model_type` "mistral": Mistral 7B and others; in GGUF its architecture is "llama"."""

    model_type = "mistral"
    gguf = None

    def read(self, fields: dict) -> dict:
        # Where the field is missing, `transformers` takes 4096; null means no window.
        window = fields.get("sliding_window", 4096) or None
        return super().read(fields) | {"sliding_window": window}
