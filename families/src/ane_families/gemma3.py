"""Gemma 3, text only: as Llama, except that five layers in six have a sliding window, and the rest:

the embedding is multiplied by sqrt(C); norms multiply by 1 + weight, and stand both before and
after attention and feed-forward and on queries and keys; the rotary embedding of sliding layers has
a smaller base; the feed-forward's activation is GELU.

References: Gemma 3 technical report (arXiv 2503.19786); `transformers`, modeling_gemma3.py;
llama.cpp, convert_hf_to_gguf.py, which stores norms as 1 + weight.
"""

from dataclasses import replace
import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ane_book.host import Host
from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, head_norms
from ane_book.rope import Factor, Rotary
from ane_families.alternating import TYPES, Local, LocalConfig, read_kinds
import numpy as np

if TYPE_CHECKING:
    from torch import nn


NORMS = {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class Gemma3Config(LocalConfig):
    """Gemma 3's hyperparameters."""

    attention_scale: Factor


OwnGemma3 = TypeVar("OwnGemma3", bound=Gemma3Config)


def _fields(fields: dict, number) -> dict:
    D, L = fields["head_dim"], fields["num_hidden_layers"]
    large = L == 62  # the 27B has another scale; llama.cpp too recognises it by its layers
    scalar = fields["hidden_size"] // fields["num_attention_heads"] if large else D
    return fields | {"query_pre_attn_scalar": scalar}


def _rows(config: Gemma3Config, name: str, array: np.ndarray) -> np.ndarray:
    return array - np.float32(1.0) if name.endswith("norm.weight") else array


class Gemma3(Local[OwnGemma3]):
    """`model_type` "gemma3_text": Gemma 3 1B and 270M, and the text model of the larger ones."""

    model_type = "gemma3_text"
    gguf: GGUF | None = GGUF("gemma3", OUTER, NAMES | NORMS, _fields, _rows)
    Config: ClassVar[type[DecoderConfig]] = Gemma3Config
    rope_theta = 1000000.0
    fixed: ClassVar = {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": 0,  # null in most files, which `refuse` lets pass
        "final_logit_softcapping": 0,
        "use_bidirectional_attention": False,
    }

    def read(self, fields: dict) -> dict:
        pattern = fields.get("sliding_window_pattern") or 6
        local = fields.get("rope_local_base_freq")
        return super().read(fields) | {
            "sliding_window": fields["sliding_window"],
            "rope_local_theta": 10000.0 if local is None else local,
            "attention_scale": fields["query_pre_attn_scalar"] ** -0.5,
            "layer_types": read_kinds(fields, lambda i: TYPES[bool((i + 1) % pattern)]),
            "tied_embeddings": fields.get("tie_word_embeddings", True),
        }

    def rotary(self, config: OwnGemma3) -> Rotary:
        return replace(config.rotary, attention_scale=config.attention_scale)

    def host(self, config: OwnGemma3) -> Host:
        scale = math.sqrt(config.hidden_size)
        return super().host(config).model_copy(update={"embedding_scale": scale})

    def block(self, config: OwnGemma3, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base import layers
        from ane_families.layers import gelu_tanh

        def norm() -> "nn.Module":
            return layers.RMSNorm(config.hidden_size, config.rms_norm_eps)

        return layers.DecoderBlock(
            layers.Attention(config, layers.NormThenRotate(config)),
            layers.FeedForward(config, gelu_tanh),
            before_attention=norm(),
            after_attention=norm(),
            before_feed_forward=norm(),
            after_feed_forward=norm(),
        )

    def parameters(self, config: OwnGemma3, kind: str = FULL) -> Parameters:
        def norm(name: str) -> TensorSpec:
            return TensorSpec(f"{name}.weight", (config.hidden_size,), plus=1.0)

        return super().parameters(config, kind) | {
            "before_attention.weight": (norm("input_layernorm"),),
            "after_attention.weight": (norm("post_attention_layernorm"),),
            "before_feed_forward.weight": (norm("pre_feedforward_layernorm"),),
            "after_feed_forward.weight": (norm("post_feedforward_layernorm"),),
            **head_norms(config, "self_attn.q_norm", "self_attn.k_norm", plus=1.0),
        }

    def outer(self, config: OwnGemma3) -> dict[str, TensorSpec]:
        norm = TensorSpec("model.norm.weight", (config.hidden_size,), plus=1.0)
        return super().outer(config) | {"norm": norm}
