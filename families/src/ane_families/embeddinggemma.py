"""EmbeddingGemma: Gemma 3's layers over one text at a time, in which a token sees both ways.

In a layer with a window a token sees half of it on each side. The text's vector is the mean of its
tokens' after the final norm, through two matrices, which are steps of sentence-transformers.

References: Vera et al. 2025 (arXiv 2509.20354); `transformers`, configuration_gemma3.py and
modeling_gemma3.py.
"""

from typing import ClassVar

from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.sentence import SentenceConfig
from ane_families.embedders import DecoderLayers
from ane_families.gemma3 import Gemma3, Gemma3Config


class EmbeddingGemmaConfig(SentenceConfig, Gemma3Config):
    """Gemma 3's hyperparameters, and what is done with a text's token vectors. `sliding_window`:
    the tokens that are seen on each side."""


class EmbeddingGemma(DecoderLayers[EmbeddingGemmaConfig], Gemma3[EmbeddingGemmaConfig]):
    """`model_type` "gemma3_text" beside the files of sentence-transformers."""

    causal = False
    Config = EmbeddingGemmaConfig
    fixed: ClassVar = Gemma3.fixed | {"use_bidirectional_attention": True}

    def config(self, fields: dict) -> DecoderConfig:
        return super().config({"use_bidirectional_attention": False} | fields)

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {"sliding_window": fields["sliding_window"] // 2}
