"""Families of models beside those of `ane_book.models`: one file per family.

    layers.py        layers that only these families have (torch)
    alternating.py   decoders with several kinds of layer: sliding window, no rotation
    tensors.py       tensors of a checkpoint of which a parameter has a part
    sparse.py        mixtures of experts in place of some layers' feed-forward
    embedders.py     encoders of texts that are made of a decoder's layers
    delta.py         gated DeltaNets, which keep a memory in place of a cache (torch)
    mamba.py         Mamba-2, which keeps one too (torch)
    borrowing.py     layers that share keys and values, or have an input of their own (torch)
    convolved.py     short convolutions along the tokens (torch)

`ane_book.models.architectures` finds `FAMILIES` by the entry point group `ane_book.families`.
"""

from ane_book.models.base.architecture import Architecture
from ane_families.embeddinggemma import EmbeddingGemma
from ane_families.exaone4 import Exaone4
from ane_families.gemma3 import Gemma3
from ane_families.gemma4 import Gemma4, Gemma4WithVision
from ane_families.glm4 import Glm4
from ane_families.granite import Granite
from ane_families.granitemoehybrid import GraniteHybrid
from ane_families.lfm2 import Lfm2
from ane_families.lfm2_moe import Lfm2Moe
from ane_families.ministral import Ministral
from ane_families.ministral3 import Ministral3
from ane_families.modernbert import ModernBert
from ane_families.olmo2 import Olmo2
from ane_families.olmo3 import Olmo3
from ane_families.qwen3 import Qwen3
from ane_families.qwen3_5 import Qwen3_5, Qwen3_5WithVision
from ane_families.qwen3_embedding import Qwen3Embedding
from ane_families.qwen3_moe import Qwen3Moe
from ane_families.roberta import Roberta, XLMRoberta
from ane_families.smollm3 import SmolLM3

__all__ = ["FAMILIES"]
__version__ = "0.2.0"

FAMILIES: tuple[Architecture, ...] = (
    EmbeddingGemma(),
    Exaone4(),
    Gemma3(),
    Gemma4(),
    Gemma4WithVision(),
    Glm4(),
    Granite(),
    GraniteHybrid(),
    Lfm2(),
    Lfm2Moe(),
    Ministral(),
    Ministral3(),
    ModernBert(),
    Olmo2(),
    Olmo3(),
    Qwen3(),
    Qwen3_5(),
    Qwen3_5WithVision(),
    Qwen3Embedding(),
    Qwen3Moe(),
    Roberta(),
    SmolLM3(),
    XLMRoberta(),
)
