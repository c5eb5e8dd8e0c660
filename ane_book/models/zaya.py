"""ZAYA1: compressed convolutional attention, and a mixture of experts with a top-1 router.

What differs from Llama: queries and keys are convolved along the tokens, then normed; each residual
sum scales both the hidden state and what is added, channel by channel; the router passes its state
to the next layer's router, and one of its classes is no expert at all. Layer 0's router receives no
state, so layer 0 has a kind of block of its own.

References: ZAYA1 (arXiv 2511.17127); compressed convolutional attention (arXiv 2510.04476);
`transformers`, modeling_zaya.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.layout import Tail
from ane_book.models.base.architecture import FULL, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, Real, Width, rope_type
from ane_book.models.base.dense import Dense, layer_types
from ane_book.models.base.experts import Experts
from ane_book.models.base.signature import BlockSignature, attention
from ane_book.options import Strategy
from ane_book.rope import Rotary
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn


FIRST = "_first"
SLIDING = "sliding"
KINDS = {"hybrid": FULL, "hybrid_sliding": SLIDING}  # in config.json -> kind of block
#: Kind of block -> the host's rotary tables and mask.
INPUTS = {FULL: ("rope", "mask"), SLIDING: ("rope_local", "mask_local")}
#: The `rope_parameters` that `transformers` assumes if config.json has none.
DEFAULT = {
    "hybrid": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
}

Taps = Annotated[int, Field(gt=0, le=64)]


class ZayaConfig(DecoderConfig):
    """ZAYA's hyperparameters."""

    layer_types: tuple[str, ...]  # FULL or SLIDING, of every layer
    rope_local_theta: Real  # of sliding layers
    num_experts: Annotated[int, Field(gt=0, le=2047)]  # E; order is counted in fp16
    router_size: Width  # R
    taps: tuple[Taps, Taps]  # tokens that each convolution of queries and keys takes
    experts: Strategy = "packed"  # how they are laid out

    @model_validator(mode="after")
    def _check_layers(self) -> "ZayaConfig":
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError("hybrid_sliding layers need a sliding_window")
        if self.num_kv_heads * self.head_dim % 2:
            raise ValueError(
                f"{self.num_kv_heads} KV heads of {self.head_dim} dimensions have no half"
            )
        return self

    @property
    def tail_width(self) -> int:
        """W: how many tokens before a call its convolutions and its delayed values reach back."""
        return max(sum(self.taps) - 2, 1)


class Zaya(Dense[ZayaConfig]):
    """`model_type` "zaya": ZAYA1-8B."""

    model_type = "zaya"
    Config = ZayaConfig
    fixed: ClassVar = {
        "hidden_act": "silu",
        "attention_bias": False,
        "lm_head_bias": False,
        "num_experts_per_tok": 1,
    }

    # --- config.json

    def read(self, fields: dict) -> dict:
        types = layer_types(fields, KINDS, lambda i: "hybrid")
        rope = self._rope(fields, set(types))
        (partial,) = {own.get("partial_rotary_factor", 1.0) for own in rope.values()}
        thetas = {name: own["rope_theta"] for name, own in (DEFAULT | rope).items()}
        named = {"intermediate_size": fields["moe_intermediate_size"], "rope_scaling": None}
        return super().read(fields | named) | {
            "rope_theta": thetas["hybrid"],
            "partial_rotary_factor": partial,
            "rope_local_theta": thetas["hybrid_sliding"],
            "sliding_window": fields.get("sliding_window"),
            "tied_embeddings": fields.get("tie_word_embeddings", True) or False,
            "layer_types": [KINDS[name] for name in types],
            "num_experts": fields["num_experts"],
            "router_size": fields["router_hidden_size"],
            "taps": (fields["cca_time0"], fields["cca_time1"]),
        }

    def _rope(self, fields: dict, types: set[str]) -> dict[str, dict[str, float]]:
        """The `rope_parameters` of each type of layer in `types`."""
        given: Mapping[str, Any] = fields.get("rope_parameters") or DEFAULT
        if given is DEFAULT and (fields.get("rope_theta") or fields.get("rope_scaling")):
            raise UnsupportedModel(
                "config.json: rope_parameters that are not by the type of layer are not supported "
                f"for {self.model_type} models"
            )
        used: dict[str, dict[str, float]] = {}
        for name in sorted(types):
            own = given.get(name)
            if not isinstance(own, dict):
                raise TypeError(f"rope_parameters: {name} is not an object")
            used[name] = own
            if rope_type(own) != "default":
                raise UnsupportedModel(
                    f"config.json: rope_parameters of type {rope_type(own)!r} are not supported "
                    f"for {self.model_type} models"
                )
        shares = {own.get("partial_rotary_factor", 1.0) for own in used.values()}
        if len(shares) > 1:
            raise UnsupportedModel(
                f"config.json: partial_rotary_factor of {' and '.join(map(str, sorted(shares)))} "
                f"in one model is not supported for {self.model_type} models"
            )
        return used

    # --- blocks, and what the host gives them

    def kinds(self, config: ZayaConfig) -> list[str]:
        first, *rest = config.layer_types
        return [first + FIRST, *rest]

    def signature(self, config: ZayaConfig, kind: str) -> BlockSignature:
        """A block keeps queries and keys before their convolutions too, and the values for the next
        token; it passes its router's state on."""
        _, _, Q, KV = config.widths
        table, mask = INPUTS[kind.removesuffix(FIRST)]
        own, router = attention(config, table, mask), {"router": config.router_size}
        tail = Tail(Q + KV + KV // 2, config.tail_width)
        return replace(
            own,
            keeps={**own.keeps, "projected": tail},
            takes={} if kind.endswith(FIRST) else router,
            gives=router,
            mixture=self.experts(config),
        )

    def host(self, config: ZayaConfig) -> Host:
        rotary: dict[str, Rotary] = {}
        masks: dict[str, int | None] = {}
        if FULL in config.layer_types:
            rotary["rope"], masks["mask"] = config.rotary, None
        if SLIDING in config.layer_types:
            rotary["rope_local"] = replace(config.rotary, theta=config.rope_local_theta)
            masks["mask_local"] = config.sliding_window
        return Host(rotary=rotary, masks=masks)

    def experts(self, config: ZayaConfig) -> Experts:
        """The mixture of experts of each layer."""
        return Experts(
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            config.experts,
            silent=1,
            after=("mixture_scaling.", "mixture_residual."),
        )

    def ends(self, config: ZayaConfig) -> "dict[str, nn.Module]":
        from ane_book.models.base.compressed import Scaling

        return {"first": Scaling(config.hidden_size)} | super().ends(config)

    def block(self, config: ZayaConfig, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base import compressed
        from ane_book.models.base.experts.layers import Mixture, swiglu

        C, eps, first = config.hidden_size, config.rms_norm_eps, kind.endswith(FIRST)
        return compressed.CompressedBlock(
            compressed.CompressedAttention(config, config.taps, config.tail_width),
            compressed.CarriedRouter(C, config.router_size, config.num_experts, eps, first),
            Mixture(self.experts(config), swiglu),
            eps,
        )

    # --- tensors

    def parameters(self, config: ZayaConfig, kind: str = FULL) -> Parameters:
        C, R = config.hidden_size, config.router_size
        return {
            "attention_norm.weight": (TensorSpec("input_layernorm.weight", (C,)),),
            **_attention(config),
            **_residual("attention", "post_attention_residual_scale", C),
            "mixture_norm.weight": (TensorSpec("post_attention_layernorm.weight", (C,)),),
            "router.down.weight": (TensorSpec("mlp.gate.down_proj.weight", (R, C)),),
            "router.down.bias": (TensorSpec("mlp.gate.down_proj.bias", (R,)),),
            **_router(config, first=kind.endswith(FIRST)),
            **self.experts(config).parameters(),
            **_residual("mixture", "post_mlp_residual_scale", C),
        }

    def outer(self, config: ZayaConfig) -> dict[str, TensorSpec]:
        C = (config.hidden_size,)
        return super().outer(config) | {
            "first.bias": TensorSpec("model.input_hidden_states_bias", C),
            "first.scale": TensorSpec("model.input_hidden_states_scale", C),
        }


def _attention(config: ZayaConfig) -> Parameters:
    C, _, Q, KV = config.widths
    D, rows, depthwise, grouped = config.head_dim, Q + KV, *config.taps
    parts = {"q_proj": Q, "k_proj": KV, "v_proj_delayed": KV // 2, "v_proj_current": KV // 2}
    own = "self_attn.qkv_proj"
    return {
        "attention.qkv.weight": tuple(
            TensorSpec(f"{own}.{name}.weight", (size, C)) for name, size in parts.items()
        ),
        "attention.depthwise.weight": (
            TensorSpec(f"{own}.conv_qk_depthwise.weight", (rows, 1, depthwise)),
        ),
        "attention.depthwise.bias": (TensorSpec(f"{own}.conv_qk_depthwise.bias", (rows,)),),
        "attention.grouped.weight": (
            TensorSpec(f"{own}.conv_qk_grouped.weight", (rows, D, grouped)),
        ),
        "attention.grouped.bias": (TensorSpec(f"{own}.conv_qk_grouped.bias", (rows,)),),
        "attention.key_scale": (TensorSpec("self_attn.qk_norm.temp", (config.num_kv_heads,)),),
        "attention.out.weight": (TensorSpec("self_attn.o_proj.weight", (C, Q)),),
    }


def _residual(ours: str, theirs: str, C: int) -> Parameters:
    """The scales and biases of both sides of a residual sum."""
    sides = {"scaling": "hidden_states", "residual": "residual"}
    return {
        f"{ours}_{side}.{part}": (TensorSpec(f"{theirs}.{name}_{part}", (C,)),)
        for side, name in sides.items()
        for part in ("bias", "scale")
    }


def _router(config: ZayaConfig, first: bool) -> Parameters:
    R, classes, own = config.router_size, config.num_experts + 1, "mlp.gate"
    found: Parameters = {}
    if not first:
        found["router.carried_scale"] = (TensorSpec(f"{own}.router_states_scale", (R,)),)
    found["router.norm.weight"] = (TensorSpec(f"{own}.router_mlp.norm.weight", (R,)),)
    for i in range(2):
        for part, shape in (("weight", (R, R)), ("bias", (R,))):
            name = f"{own}.router_mlp.fc{i + 1}.{part}"
            found[f"router.hidden.{i}.{part}"] = (TensorSpec(name, shape),)
    return found | {
        "router.out.weight": (TensorSpec(f"{own}.router_mlp.out_proj.weight", (classes, R)),),
        "router.balance": (TensorSpec(f"{own}.balancing_biases", (classes,)),),
    }
