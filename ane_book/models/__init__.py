"""Model definitions: one file per architecture, built from the layers in base/.

Start with llama.py; the other decoders' files say how they differ from it.

    base/         what the architectures share
      __init__.py       the glossary of dimension letters
      architecture.py   the interface that every architecture implements
      signature.py      what a block takes, keeps from call to call, and gives
      config.py         the hyperparameters of a dense decoder
      dense.py          Llama's decoder, the base class of most architectures
      alternating.py    decoders with several kinds of layer: sliding window, no rotation
      sparse.py         mixtures of experts in place of some layers' feed-forward
      nearest.py        the family that is nearest to a model of none of them
      layers.py         the layers of decoders, in ANE form (torch)
      encoder.py        the layers of encoders (torch)
      sentence.py       what encoders of texts share: pooling, and what follows it
      delta.py          gated DeltaNets, which keep a memory in place of a cache (torch)
      borrowing.py      layers that share keys and values, or have an input of their own (torch)
      convolved.py      short convolutions along the tokens (torch)
      compressed.py     ZAYA1's convolutional attention and its router (torch)
      experts/          mixtures of experts: tensor layout, and layers (torch)
      decoder.py        the head, state dicts, and a whole decoder to run in PyTorch (torch)

To add an architecture, write a file here, list its class in `ARCHITECTURES`, and add a row to the
parity tests (`tests/_tiny.py`).
"""

from typing import Any

from ane_book.errors import BY_LOGITS, UnsupportedModel
from ane_book.models.base.architecture import Architecture, Task
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.nearest import describe_nearest
from ane_book.models.bert import Bert
from ane_book.models.embeddinggemma import EmbeddingGemma
from ane_book.models.exaone4 import Exaone4
from ane_book.models.gemma3 import Gemma3
from ane_book.models.gemma4 import Gemma4, Gemma4WithVision
from ane_book.models.glm4 import Glm4
from ane_book.models.granite import Granite
from ane_book.models.hunyuan import HunYuan
from ane_book.models.lfm2 import Lfm2
from ane_book.models.lfm2_moe import Lfm2Moe
from ane_book.models.llama import Llama
from ane_book.models.ministral import Ministral
from ane_book.models.ministral3 import Ministral3
from ane_book.models.mistral import Mistral
from ane_book.models.modernbert import ModernBert
from ane_book.models.olmo2 import Olmo2
from ane_book.models.olmo3 import Olmo3
from ane_book.models.phi3 import Phi3
from ane_book.models.privacy_filter import PrivacyFilter
from ane_book.models.qwen2 import Qwen2
from ane_book.models.qwen3 import Qwen3
from ane_book.models.qwen3_5 import Qwen3_5, Qwen3_5WithVision
from ane_book.models.qwen3_embedding import Qwen3Embedding
from ane_book.models.qwen3_moe import Qwen3Moe
from ane_book.models.roberta import Roberta, XLMRoberta
from ane_book.models.smollm3 import SmolLM3
from ane_book.models.zaya import Zaya

__all__ = [
    "ARCHITECTURES",
    "DecoderConfig",
    "find",
    "find_gguf",
    "read_config",
]

_all: tuple[Architecture, ...] = (
    Bert(),
    EmbeddingGemma(),
    Exaone4(),
    Gemma3(),
    Gemma4(),
    Gemma4WithVision(),
    Glm4(),
    Granite(),
    HunYuan(),
    Lfm2(),
    Lfm2Moe(),
    Llama(),
    Ministral(),
    Ministral3(),
    Mistral(),
    ModernBert(),
    Olmo2(),
    Olmo3(),
    Phi3(),
    PrivacyFilter(),
    Qwen2(),
    Qwen3(),
    Qwen3Embedding(),
    Qwen3_5(),
    Qwen3_5WithVision(),
    Qwen3Moe(),
    Roberta(),
    SmolLM3(),
    XLMRoberta(),
    Zaya(),
)

#: Name, which is the `model_type` and perhaps a variant -> architecture.
ARCHITECTURES: dict[str, Architecture] = {each.name: each for each in _all}

CLASSIFIER = "ForSequenceClassification"  # how classes of rerankers end in `transformers`


def find(name: object) -> Architecture:
    """The architecture of this name; raises UnsupportedModel if there is none."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModel(_unknown(name))
    return ARCHITECTURES[name]


def find_gguf(name: object) -> Architecture:
    """The architecture whose `general.architecture` in GGUF is `name`; raises UnsupportedModel."""
    known = {a.gguf.architecture: a for a in ARCHITECTURES.values() if a.gguf}
    if not isinstance(name, str) or name not in known:
        raise UnsupportedModel(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(known))}"
        )
    return known[name]


def read_config(fields: dict) -> Any:
    """Parse the fields of a Hugging Face `config.json` with the architecture that they name.

    Raises UnsupportedModel for a model, or a field's value, that this library does not support.
    """
    return _fit(fields).config(fields)


def _fit(fields: dict) -> Architecture:
    """The architecture of a `model_type` that does what the model is for."""
    named = fields.get("architectures")
    for name in named if isinstance(named, list) else []:
        if str(name).endswith(CLASSIFIER):
            raise UnsupportedModel(
                f"config.json: {name} scores or sorts whole texts, which is not converted; "
                f"{BY_LOGITS}"
            )
    model_type, wanted = fields.get("model_type"), _task(fields)
    fit = [one for one in ARCHITECTURES.values() if one.model_type == model_type]
    if not fit and isinstance(model_type, str):
        nearest = describe_nearest(fields, ARCHITECTURES.values())
        raise UnsupportedModel(f"{_unknown(model_type)}; {nearest}")
    if not fit:
        raise UnsupportedModel(_unknown(model_type))
    own = [one for one in fit if one.task == wanted or (wanted is None and not one.variant)]
    if not own:
        known = [each.model_type for each in ARCHITECTURES.values() if each.task == wanted]
        raise UnsupportedModel(
            f"config.json: {wanted} is not supported for {model_type} models; supported: "
            f"{', '.join(sorted(known))}"
        )
    return own[0]


def _task(fields: dict) -> Task | None:
    """What a model is for, where its fields say that: with pooling, from the files of
    sentence-transformers, for embedding."""
    sentences = fields.get("sentence_transformers")
    return "embedding" if isinstance(sentences, dict) and "pooling" in sentences else None


def _unknown(model_type: object) -> str:
    if model_type is None:
        return (
            "config.json: it has no model_type, which names the architecture; take the file that "
            f"belongs to the weights; supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return (
        f"config.json: model_type {model_type!r} is not one this library converts; "
        f"supported: {', '.join(sorted({each.model_type for each in ARCHITECTURES.values()}))}"
    )
