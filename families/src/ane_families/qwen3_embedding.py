"""Qwen3-Embedding: Qwen3's layers over one text at a time, whose vector is its last token's.

A token sees those before it, as in the decoder, so the last one has seen the whole text; the
tokenizer puts a token of its own there. A query goes with an instruction before it, which is a
prompt of sentence-transformers.

References: Zhang et al. 2025 (arXiv 2506.05176); `transformers`, modeling_qwen3.py.
"""

from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.sentence import SentenceConfig
from ane_families.embedders import DecoderLayers
from ane_families.qwen3 import Qwen3


class Qwen3EmbeddingConfig(SentenceConfig, DecoderConfig):
    """Qwen3's hyperparameters, and what is done with a text's token vectors."""


class Qwen3Embedding(DecoderLayers[Qwen3EmbeddingConfig], Qwen3[Qwen3EmbeddingConfig]):
    """`model_type` "qwen3" beside the files of sentence-transformers."""

    Config = Qwen3EmbeddingConfig
