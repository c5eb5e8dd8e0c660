"""Model definitions: one file per architecture, built from the layers in base/.

Start with llama.py; the other decoders' files say how they differ from it. `base` has what they
share, with a glossary of dimension letters.

Other families are in a distribution of their own, `ane-families`. A distribution adds families by
an entry point in the group `ane_book.families`, which names a tuple of architectures.
"""

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ane_book import __version__
from ane_book.errors import BY_LOGITS, UnsupportedModel
from ane_book.models.base.architecture import Architecture
from ane_book.models.base.config import DecoderConfig
from ane_book.models.bert import Bert
from ane_book.models.hunyuan import HunYuan
from ane_book.models.llama import Llama
from ane_book.models.mistral import Mistral
from ane_book.models.phi3 import Phi3
from ane_book.models.privacy_filter import PrivacyFilter
from ane_book.models.qwen2 import Qwen2
from ane_book.models.zaya import Zaya
from mlprogram.extras import missing

__all__ = [
    "DecoderConfig",
    "architectures",
    "find",
    "find_gguf",
    "read_config",
]

OWN: tuple[Architecture, ...] = (
    Bert(), HunYuan(), Llama(), Mistral(), Phi3(), PrivacyFilter(), Qwen2(), Zaya(),
)  # fmt: skip
GROUP = "ane_book.families"  # entry points of the distributions that have more

CLASSIFIER = "ForSequenceClassification"  # how classes of rerankers end in `transformers`


@cache
def architectures() -> dict[str, Architecture]:
    """Every architecture by its name: this library's own, and those of other distributions.

    Raises UnsupportedModel where two have the same name, or a distribution cannot be imported.
    """
    found = {each.name: each for each in OWN}
    for entry in entry_points(group=GROUP):
        try:
            more = [*entry.load()]
        except Exception as error:
            raise UnsupportedModel(
                f"{entry.value}, which adds families, cannot be imported ({error}); update or "
                "uninstall its distribution"
            ) from None
        for each in more:
            if each.name in found:
                raise UnsupportedModel(
                    f"{entry.value}: there is a family named {each.name!r} without it; uninstall "
                    "the distribution of one of them"
                )
            found[each.name] = each
    return found


def find(name: object) -> Architecture:
    """The architecture of this name; raises UnsupportedModel if there is none."""
    known = architectures()
    if not isinstance(name, str) or name not in known:
        raise _refused(f"architecture {name!r} is not one this library converts", known)
    return known[name]


def find_gguf(name: object) -> Architecture:
    """The architecture whose `general.architecture` in GGUF is `name`; raises UnsupportedModel."""
    known = {each.gguf.architecture: each for each in architectures().values() if each.gguf}
    if not isinstance(name, str) or name not in known:
        raise _refused(f"architecture {name!r} is not supported", known)
    return known[name]


def read_config(fields: dict) -> Any:
    """Parse the fields of a Hugging Face `config.json` with the architecture that they name: of a
    `model_type`, with pooling from the files of sentence-transformers, the one for embedding.

    Raises UnsupportedModel for a model, or a field's value, that this library does not support.
    """
    named = fields.get("architectures")
    for name in named if isinstance(named, list) else []:
        if str(name).endswith(CLASSIFIER):
            raise UnsupportedModel(
                f"config.json: {name} scores or sorts whole texts, which is not converted; "
                f"{BY_LOGITS}"
            )
    sentences = fields.get("sentence_transformers")
    pooled = isinstance(sentences, dict) and "pooling" in sentences
    known, model_type = [*architectures().values()], fields.get("model_type")
    fit = [one for one in known if one.model_type == model_type]
    own = [one for one in fit if (one.task == "embedding" if pooled else not one.variant)]
    if own:
        return own[0].config(fields)
    if fit:
        said = f"config.json: embedding is not supported for {model_type} models"
        embedders = {one.model_type for one in known if one.task == "embedding"}
        raise _refused(said, embedders)
    said = f"config.json: model_type {model_type!r} is not one this library converts"
    if model_type is None:
        said = (
            "config.json: it has no model_type, which names the architecture; take the file that "
            "belongs to the weights"
        )
    raise _refused(said, {one.model_type for one in known})


def _refused(said: str, known: Collection[str]) -> UnsupportedModel:
    """What to do about a family that is not here: take one of those known, or install more."""
    said = f"{said}; supported: {', '.join(sorted(known))}"
    if any(entry.name == "ane-families" for entry in entry_points(group=GROUP)):
        return UnsupportedModel(said)
    remedy = missing("for more families", "ane-families", f"ane-families=={__version__}")
    return UnsupportedModel(f"{said}; {remedy}")
