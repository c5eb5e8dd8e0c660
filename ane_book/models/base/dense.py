"""`Dense`, the base class of dense decoders: Llama's block, tensor names and config fields.

An architecture overrides what differs, in its own file; llama.py shows the block. The functions
below it read parts of a `config.json`. Letters: see `ane_book.models.base`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.architecture import FULL, Architecture, Checkpoint, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, rope_type

if TYPE_CHECKING:
    from ane_book.models.base.layers import Attention
    from torch import nn

#: GGUF's names of tensors -> those of `transformers`: outside of the layers, and in a layer.
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


OwnConfig = TypeVar("OwnConfig", bound=DecoderConfig)


class Dense(Architecture, Generic[OwnConfig]):
    """A Llama-like decoder, except for what a subclass overrides."""

    Config: ClassVar[type[DecoderConfig]] = DecoderConfig
    fixed: ClassVar = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "lm_head_bias": False,
        "use_sliding_window": False,
        "attention_bias": False,
        "partial_rotary_factor": 1.0,
    }
    rope_theta = 10000.0  # the default if config.json has none
    #: The context extensions that are supported: `rope_type` in config.json.
    scalings: ClassVar[tuple[str, ...]] = ("linear", "llama3", "longrope", "yarn")

    # --- config.json

    def read(self, fields: dict) -> dict:
        theta = fields.get("rope_theta")
        return sizes(fields) | {
            "architecture": self.name,
            "rms_norm_eps": fields["rms_norm_eps"],
            "rope_theta": self.rope_theta if theta is None else theta,
            "rope_scaling": self.read_scaling(fields),
            "tied_embeddings": fields.get("tie_word_embeddings") or False,
        }

    def read_scaling(self, fields: dict) -> dict | None:
        """The rotary scaling with its type under `rope_type`, or None.

        fields: a `config.json` after `plain_rope`. Raises UnsupportedModel for a type that is not
        in `scalings`.
        """
        given = fields["rope_scaling"]
        if given is None:
            return None
        if rope_type(given) == "su":  # LongRoPE's name in 2024
            given = given | {"rope_type": "longrope"}
        given = typed_scaling(given, self.scalings, self.model_type)
        if given["rope_type"] in ("llama3", "longrope", "yarn"):
            name = "original_max_position_embeddings"  # the top level wins, as in Phi's files
            original = fields.get(name) or given.get(name) or fields["max_position_embeddings"]
            given = given | {name: original}
        return given

    # --- blocks, and what the host gives them

    def host(self, config: OwnConfig) -> Host:
        return Host(rotary={"rope": config.rotary}, masks={"mask": config.sliding_window})

    def ends(self, config: OwnConfig) -> "dict[str, nn.Module]":
        from ane_book.models.base.layers import RMSNorm

        return {"norm": RMSNorm(config.hidden_size, config.rms_norm_eps)}

    def attention(self, config: OwnConfig) -> "Attention":
        from ane_book.models.base.layers import Attention, Rotate

        return Attention(config, Rotate(config))

    def block(self, config: OwnConfig, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base.layers import DecoderBlock, FeedForward, RMSNorm

        return DecoderBlock(
            self.attention(config),
            FeedForward(config),
            before_attention=RMSNorm(config.hidden_size, config.rms_norm_eps),
            before_feed_forward=RMSNorm(config.hidden_size, config.rms_norm_eps),
        )

    # --- tensors

    def parameters(self, config: OwnConfig, kind: str = FULL) -> Parameters:
        C, F, Q, KV = config.widths
        return {
            "before_attention.weight": (TensorSpec("input_layernorm.weight", (C,)),),
            "attention.qkv.weight": (
                TensorSpec("self_attn.q_proj.weight", (Q, C)),
                TensorSpec("self_attn.k_proj.weight", (KV, C)),
                TensorSpec("self_attn.v_proj.weight", (KV, C)),
            ),
            "attention.out.weight": (TensorSpec("self_attn.o_proj.weight", (C, Q)),),
            "before_feed_forward.weight": (TensorSpec("post_attention_layernorm.weight", (C,)),),
            "feed_forward.gate_up.weight": (
                TensorSpec("mlp.gate_proj.weight", (F, C)),
                TensorSpec("mlp.up_proj.weight", (F, C)),
            ),
            "feed_forward.down.weight": (TensorSpec("mlp.down_proj.weight", (C, F)),),
        }

    def outer(self, config: OwnConfig) -> dict[str, TensorSpec]:
        matrix = config.vocab_size, config.hidden_size
        tensors = {
            "embedding": TensorSpec("model.embed_tokens.weight", matrix),
            "norm": TensorSpec("model.norm.weight", (config.hidden_size,)),
        }
        if not config.tied_embeddings:
            tensors["head"] = TensorSpec("lm_head.weight", matrix)
        return tensors

    def checkpoint(self, config: OwnConfig) -> Checkpoint:
        tied = {"lm_head.weight"} if config.tied_embeddings else set()  # a copy of the embedding
        return Checkpoint(repeats=frozenset(tied))


def head_norms(config: DecoderConfig, q: str, k: str, plus: float = 0.0) -> dict:
    """The parameter of a per-head norm of queries and keys.

    The checkpoint has one weight (D,) for all query heads, named `q`, and one for all key heads,
    named `k`; ours repeats each once per head. plus: see `TensorSpec`.
    """
    D = config.head_dim
    norms = (
        TensorSpec(f"{q}.weight", (D,), config.num_heads, plus=plus),
        TensorSpec(f"{k}.weight", (D,), config.num_kv_heads, plus=plus),
    )
    return {"attention.prepare.weight": norms}


def layer_types(fields: dict, known: Collection[str], default: Callable[[int], str]) -> list[str]:
    """The `layer_types` of a `config.json`, or `default(i)` for each layer i if it has none.

    Raises UnsupportedModel unless there is one of the `known` types for each layer.
    """
    L = fields["num_hidden_layers"]
    types = fields.get("layer_types") or [default(i) for i in range(min(L, 10_000))]
    if not isinstance(types, list) or len(types) != L or any(t not in known for t in types):
        raise UnsupportedModel(
            f"config.json: layer_types = {types!r:.200} of {L!r} layers; every layer needs one "
            f"of {', '.join(known)}"
        )
    return types


def sizes(fields: dict) -> dict:
    """The sizes in a `config.json` under the names of `DecoderConfig`."""
    heads = fields["num_attention_heads"]
    return {
        "hidden_size": fields["hidden_size"],
        "intermediate_size": fields["intermediate_size"],
        "num_layers": fields["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": fields.get("num_key_value_heads") or heads,
        "head_dim": fields.get("head_dim") or fields["hidden_size"] // heads,
        "vocab_size": fields["vocab_size"],
        "max_position": fields["max_position_embeddings"],
    }


def typed_scaling(given: dict, supported: Sequence[str], model_type: str) -> dict:
    """Put the type of a `rope_scaling` under `rope_type`; raises UnsupportedModel for others."""
    kind = rope_type(given)
    if kind not in supported:
        raise UnsupportedModel(
            f"config.json: rope_scaling of type {kind!r} is not supported for "
            f"{model_type} models; supported: default, {', '.join(supported)}"
        )
    return {key: value for key, value in given.items() if key != "type"} | {"rope_type": kind}
