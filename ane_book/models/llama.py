"""Llama: the dense decoder that most others are measured by.

References: Llama 2, Touvron et al. 2023 (arXiv 2307.09288); `transformers`, modeling_llama.py;
llama.cpp, convert_hf_to_gguf.py.
"""

from ane_book.models.base.architecture import GGUF, halves
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense
import numpy as np

__all__ = ["Llama"]


class Llama(Dense[DecoderConfig]):
    """Llama 1 to 3, SmolLM2, and what else has `model_type` "llama"."""

    model_type = "llama"
    gguf: GGUF | None = GGUF("llama", OUTER, NAMES)

    def from_gguf(self, fields: dict, number) -> dict:
        """A "llama" with a sliding window is a Mistral."""
        return fields | {"model_type": "mistral"} if fields["sliding_window"] else fields

    def rows_of_gguf(self, config: DecoderConfig, name: str, array: np.ndarray) -> np.ndarray:
        """Undo llama.cpp's order of the rows of q and k, (heads * D, C) to the same.

        Its "llama" rotates neighbours (0, 1), (2, 3), ...; `transformers` rotates halves (0, D/2),
        (1, D/2 + 1), ... The GGUF of most other architectures has the rows as they were.
        """
        rotated = name.split(".")[-2] in ("q_proj", "k_proj")
        return halves(array, config.head_dim) if rotated else array
