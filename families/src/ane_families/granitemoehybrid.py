"""Granite 4, the models without experts: as Granite 3, except that most layers are Mamba-2, which
keeps a memory of one size in place of a cache (`mamba.py`), and that the others may not rotate.

`transformers` calls the feed-forward of a model without experts `shared_mlp`.

References: Granite 4.0 (IBM, 2025); Mamba-2 (arXiv 2405.21060); `transformers`,
modeling_granitemoehybrid.py.
"""

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.layout import MEMORY, Kept, Recurrent, Tail
from ane_book.models.base.architecture import FULL, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, Width
from ane_book.models.base.dense import layer_types
from ane_book.models.base.signature import BlockSignature, Columns
from ane_families.granite import Granite, GraniteConfig
from ane_families.tensors import Tap
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn


MAMBA = "mamba"
KINDS = {  # in config.json, as transformers 5 and 4 write it -> kind of block
    "full_attention": FULL,
    "linear_attention": MAMBA,
    "attention": FULL,
    "mamba": MAMBA,
}


class GraniteHybridConfig(GraniteConfig):
    """Granite 4's hyperparameters."""

    layer_types: tuple[str, ...]  # FULL or MAMBA, of every layer
    rotated: bool  # whether attention rotates queries and keys
    taps: Annotated[int, Field(ge=2, le=64)]  # tokens that a convolution takes
    mamba_heads: Width  # H of the Mamba layers, each of which has a memory
    mamba_groups: Width  # G, of heads that share keys and queries
    mamba_sizes: tuple[Width, Width]  # P, N

    @model_validator(mode="after")
    def _check_groups(self) -> "GraniteHybridConfig":
        if self.mamba_heads % self.mamba_groups:
            raise ValueError(
                f"{self.mamba_heads} Mamba heads do not divide by {self.mamba_groups} groups"
            )
        return self

    @property
    def mamba_widths(self) -> tuple[int, int]:
        """Channels of a Mamba layer's values, and of those with keys and queries."""
        P, N = self.mamba_sizes
        inner = self.mamba_heads * P
        return inner, inner + 2 * self.mamba_groups * N


class GraniteHybrid(Granite[GraniteHybridConfig]):
    """`model_type` "granitemoehybrid". A mixture of experts is refused."""

    model_type = "granitemoehybrid"
    gguf = None
    Config = GraniteHybridConfig
    fixed: ClassVar = Granite.fixed | {
        "num_local_experts": 0,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }

    # --- config.json

    def config(self, fields: dict) -> DecoderConfig:
        return super().config({"num_local_experts": 8} | fields)  # as in `transformers`

    def read(self, fields: dict) -> dict:
        _check_steps(fields.get("time_step_limit"))
        rotated = fields.get("position_embedding_type") == "rope"
        own = {"intermediate_size": fields["shared_intermediate_size"]}
        if not rotated:
            own["rope_scaling"] = None
        types = layer_types(fields, KINDS, lambda i: "linear_attention")
        return super().read(fields | own) | {
            "layer_types": [KINDS[name] for name in types],
            "rotated": rotated,
            "taps": fields["mamba_d_conv"],
            "mamba_heads": fields["mamba_n_heads"],
            "mamba_groups": fields["mamba_n_groups"],
            "mamba_sizes": (_head_size(fields), fields["mamba_d_state"]),
        }

    # --- blocks, and what the host gives them

    def kinds(self, config: GraniteHybridConfig) -> list[str]:
        return list(config.layer_types)

    def host(self, config: GraniteHybridConfig) -> Host:
        host = super().host(config)
        if config.rotated:
            return host
        still = replace(host.rotary["rope"], rotary_dim=0)  # every angle is zero
        return host.model_copy(update={"rotary": {"rope": still}})

    def signature(self, config: GraniteHybridConfig, kind: str) -> BlockSignature:
        """A Mamba layer keeps values, keys and queries before their convolution, and a memory,
        which only columns of real tokens change."""
        if kind != MAMBA:
            return super().signature(config, kind)
        _, mixed = config.mamba_widths
        keeps: dict[str, Kept] = {
            "projected": Tail(mixed, config.taps - 1),
            MEMORY: Recurrent(config.mamba_heads, *config.mamba_sizes),
        }
        return BlockSignature({"real": Columns(1)}, keeps=keeps)

    def block(self, config: GraniteHybridConfig, kind: str = FULL) -> "nn.Module":
        block: Any = super().block(config, kind)
        if kind != MAMBA:
            return block
        from ane_families.convolved import OperatorBlock
        from ane_families.mamba import Mamba

        size, state = config.mamba_sizes
        operator = Mamba(
            config.hidden_size,
            heads=config.mamba_heads,
            size=size,
            state=state,
            groups=config.mamba_groups,
            taps=config.taps,
            eps=config.rms_norm_eps,
        )
        return OperatorBlock(
            operator,
            block.feed_forward,
            before_attention=block.before_attention,
            after_attention=block.after_attention,
            before_feed_forward=block.before_feed_forward,
            after_feed_forward=block.after_feed_forward,
        )

    # --- tensors

    def parameters(self, config: GraniteHybridConfig, kind: str = FULL) -> Parameters:
        C, F, *_ = config.widths
        found = super().parameters(config, kind) | {
            "feed_forward.gate_up.weight": (
                TensorSpec("shared_mlp.input_linear.weight", (2 * F, C)),
            ),
            "feed_forward.down.weight": (TensorSpec("shared_mlp.output_linear.weight", (C, F)),),
        }
        if kind != MAMBA:
            return found
        outer = {n: parts for n, parts in found.items() if not n.startswith("attention.")}
        return _mamba(config) | outer


def _check_steps(limit: list | tuple | None) -> None:
    """Refuse bounds of a token's step, which `transformers` itself keeps in some calls only.

    transformers 5 writes infinity as {"__float__": "Infinity"}.
    """
    found = [n["__float__"] if isinstance(n, dict) else n for n in limit or (0.0, inf)]
    if [*map(float, found)] != [0.0, inf]:
        raise UnsupportedModel(
            f"config.json: time_step_limit = {limit!r:.200} is not supported for granitemoehybrid "
            "models"
        )


def _head_size(fields: dict) -> int:
    """P, which `config.json` may leave to be the share of a head."""
    size = fields.get("mamba_d_head", "auto")
    if size != "auto":
        return size
    return fields.get("mamba_expand", 2) * fields["hidden_size"] // fields["mamba_n_heads"]


def _mamba(config: GraniteHybridConfig) -> Parameters:
    """The parameters of a Mamba layer's operator."""
    C, H, K = config.hidden_size, config.mamba_heads, config.taps
    inner, mixed = config.mamba_widths
    taps = {
        f"attention.convolution.taps.{i}": (Tap("mamba.conv1d.weight", (mixed, 1, K), number=i),)
        for i in range(K)
    }
    vectors = {
        "bias": ("conv1d.bias", mixed),
        "dt_bias": ("dt_bias", H),
        "a_log": ("A_log", H),
        "skip": ("D", H),
        "weight": ("norm.weight", inner),
    }
    return {
        "attention.inward.weight": (TensorSpec("mamba.in_proj.weight", (inner + mixed + H, C)),),
        **taps,
        **{
            f"attention.{ours}": (TensorSpec(f"mamba.{name}", (size,)),)
            for ours, (name, size) in vectors.items()
        },
        "attention.out.weight": (TensorSpec("mamba.out_proj.weight", (C, inner)),),
    }
