"""Models: one file an architecture, of the layers that they share.

    base/         what they share
      architecture.py   the interface: what a file has to say
      config.py         a dense decoder in numbers
      dense.py          the decoder that most of them are, but for a few lines
      layers.py         the layers, in the form that the Neural Engine likes (torch)
      encoder.py        those of encoders (torch)
      compressed.py     attention that is mixed along the tokens, and its router (torch)
      experts/          mixtures of experts: how they are laid out, and their layers (torch)
      decoder.py        what comes around the blocks: head, weights, the whole decoder (torch)

Adding one is a file here, its line in `ARCHITECTURES`, and a row in the parity tests
(`tests/_tiny.py`).
"""

from typing import Any

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import Architecture
from ane_book.models.base.config import DecoderConfig
from ane_book.models.bert import Bert
from ane_book.models.gemma3 import Gemma3
from ane_book.models.granite import Granite
from ane_book.models.hunyuan import HunYuan
from ane_book.models.llama import Llama
from ane_book.models.mistral import Mistral
from ane_book.models.olmo2 import Olmo2
from ane_book.models.phi3 import Phi3
from ane_book.models.privacy_filter import PrivacyFilter
from ane_book.models.qwen2 import Qwen2
from ane_book.models.qwen3 import Qwen3
from ane_book.models.zaya import Zaya

__all__ = ["ARCHITECTURES", "DecoderConfig", "find", "find_gguf", "read_config"]

#: `model_type` -> architecture.
ARCHITECTURES: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        Bert(),
        Gemma3(),
        Granite(),
        HunYuan(),
        Llama(),
        Mistral(),
        Olmo2(),
        Phi3(),
        PrivacyFilter(),
        Qwen2(),
        Qwen3(),
        Zaya(),
    )
}


def find(model_type: object) -> Architecture:
    """The architecture of this `model_type`; raises UnsupportedModel."""
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise UnsupportedModel(
            f"config.json: model_type {model_type!r} is not one this library converts; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[model_type]


def find_gguf(name: object) -> Architecture:
    """The architecture that GGUF calls so; raises UnsupportedModel."""
    known = {a.gguf.architecture: a for a in ARCHITECTURES.values() if a.gguf}
    if not isinstance(name, str) or name not in known:
        raise UnsupportedModel(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(known))}"
        )
    return known[name]


def read_config(fields: dict) -> Any:
    """A Hugging Face `config.json`, read by the architecture that it names.

    Raises UnsupportedModel for a model or a field's value that this library does not have.
    """
    return find(fields.get("model_type")).config(fields)
