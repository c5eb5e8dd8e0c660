"""SmolLM3: as Llama, except that every fourth layer does not rotate queries and keys.

References: SmolLM3 (Hugging Face, 2025); NoPE, Yang et al. 2025 (arXiv 2501.18795);
`transformers`, modeling_smollm3.py; llama.cpp, which has no list of such layers, but every fourth.
"""

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import FULL, GGUF
from ane_book.models.base.dense import NAMES, OUTER, layer_types
from ane_book.models.llama import unpermuted
from ane_families.alternating import UNROTATED, Alternating, AlternatingConfig


class SmolLM3(Alternating[AlternatingConfig]):
    """`model_type` "smollm3". A sliding window, which no published model uses, is refused."""

    model_type = "smollm3"
    gguf = GGUF("smollm3", OUTER, NAMES, rows=unpermuted)
    rope_theta = 2000000.0

    def read(self, fields: dict) -> dict:
        layer_types(fields, ("full_attention",), lambda i: "full_attention")
        return super().read(fields) | {
            "layer_types": [FULL if rotated else UNROTATED for rotated in _rotated(fields)],
            "tied_embeddings": fields.get("tie_word_embeddings", True),
        }


def _rotated(fields: dict) -> list[int]:
    """1 for each layer that rotates and 0 for one that does not.

    `config.json` calls this list no_rope_layers, although a 1 in it means that there is rotation.
    """
    L, every = fields["num_hidden_layers"], fields.get("no_rope_layer_interval") or 4
    default = [int((i + 1) % every != 0) for i in range(min(L, 10_000))]
    given = fields.get("no_rope_layers") or default
    if not isinstance(given, list) or len(given) < L or any(n not in (0, 1) for n in given):
        raise UnsupportedModel(
            f"config.json: no_rope_layers = {given!r:.200} of {L!r} layers; every layer needs a 1 "
            "(rotated) or a 0"
        )
    return given[:L]
