"""Qwen3.5, the dense text models: three layers in four are gated DeltaNets, which keep a memory of
one size in place of a cache (`base/delta.py`).

What differs from Qwen3 in the other layers: norms multiply by 1 + weight; a quarter of each head's
dimensions is rotated; the heads are multiplied by a sigmoid of the input before they are projected,
and the checkpoint has the rows of that gate among those of the queries, head by head.

References: Gated Delta Networks (arXiv 2412.06464); `transformers`, modeling_qwen3_5.py;
llama.cpp, conversion/qwen.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from ane_book.layout import MEMORY, Kept, Recurrent, Tail
from ane_book.models.base.architecture import FULL, GGUF, Checkpoint, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, Width, plain_rope
from ane_book.models.base.dense import OUTER, Dense, head_norms, layer_types
from ane_book.models.base.signature import BlockSignature, Columns
from ane_families.qwen3 import NORMED
from ane_families.tensors import Half, Tap
import numpy as np
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from ane_book.models.base.layers import DecoderBlock
    from torch import nn


DELTA = "delta"
KINDS = {"full_attention": FULL, "linear_attention": DELTA}  # in config.json -> kind of block
DELTA_NAMES = {  # in GGUF -> in `transformers`
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}


class Qwen3_5Config(DecoderConfig):
    """Qwen3.5's hyperparameters."""

    layer_types: tuple[str, ...]  # FULL or DELTA, of every layer
    taps: Annotated[int, Field(ge=2, le=64)]  # tokens that a convolution takes
    delta_heads: Width  # H of the DeltaNets, each of which has a memory
    delta_key_heads: Width
    delta_sizes: tuple[Width, Width]  # Dk, Dv

    @model_validator(mode="after")
    def _check_heads(self) -> "Qwen3_5Config":
        if self.delta_heads % self.delta_key_heads:
            raise ValueError(
                f"{self.delta_heads} value heads do not divide by {self.delta_key_heads} key heads"
            )
        return self

    @property
    def delta_widths(self) -> tuple[int, int]:
        """Channels of the keys, and of the values, of a DeltaNet."""
        Dk, Dv = self.delta_sizes
        return self.delta_key_heads * Dk, self.delta_heads * Dv


def _fields(fields: dict, number: Callable[..., float]) -> dict:
    heads = number("ssm.time_step_rank")
    return fields | {
        "full_attention_interval": number("full_attention_interval", 4),
        "linear_conv_kernel_dim": number("ssm.conv_kernel"),
        "linear_num_value_heads": heads,
        "linear_num_key_heads": number("ssm.group_count"),
        "linear_key_head_dim": number("ssm.state_size"),
        "linear_value_head_dim": number("ssm.inner_size") // (heads or 1),
    }


def _rows(config: Qwen3_5Config, name: str, array: np.ndarray) -> np.ndarray:
    """llama.cpp stores norms as 1 + weight, A_log as -exp of it, and the values' heads with
    those of one key head far apart."""
    own = name.rpartition("linear_attn.")[2]
    if own == name:
        return array - np.float32(1.0) if name.endswith("norm.weight") else array
    if own == "norm.weight":
        return array
    if own == "out_proj.weight":
        return np.ascontiguousarray(_grouped(config, array.T, config.delta_sizes[1]).T)
    if own == "A_log":
        array = np.log(-array)
    start = 2 * config.delta_widths[0] if own in ("in_proj_qkv.weight", "conv1d.weight") else 0
    size = config.delta_sizes[1] if start or own == "in_proj_z.weight" else 1
    return np.concatenate([array[:start], _grouped(config, array[start:], size)])


class Qwen3_5(Dense[Qwen3_5Config]):
    """`model_type` "qwen3_5_text"."""

    model_type = "qwen3_5_text"
    gguf: GGUF | None = GGUF("qwen35", OUTER, NORMED | DELTA_NAMES, _fields, _rows)
    Config = Qwen3_5Config
    fixed: ClassVar = {
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
    }
    scalings: ClassVar[tuple[str, ...]] = ("linear", "yarn")

    # --- config.json

    def config(self, fields: dict) -> DecoderConfig:
        return super().config({"partial_rotary_factor": 0.25} | plain_rope(fields))

    def read(self, fields: dict) -> dict:
        every = fields.get("full_attention_interval") or 4
        types = layer_types(fields, KINDS, lambda i: [*KINDS][bool((i + 1) % every)])
        return super().read(fields) | {
            "partial_rotary_factor": fields["partial_rotary_factor"],
            "layer_types": [KINDS[name] for name in types],
            "taps": fields["linear_conv_kernel_dim"],
            "delta_heads": fields["linear_num_value_heads"],
            "delta_key_heads": fields["linear_num_key_heads"],
            "delta_sizes": (fields["linear_key_head_dim"], fields["linear_value_head_dim"]),
        }

    # --- blocks, and what the host gives them

    def kinds(self, config: Qwen3_5Config) -> list[str]:
        return list(config.layer_types)

    def signature(self, config: Qwen3_5Config, kind: str) -> BlockSignature:
        """A DeltaNet keeps queries, keys and values before their convolution, and a memory, which
        only columns of real tokens change."""
        if kind != DELTA:
            return super().signature(config, kind)
        (keys, values), (Dk, Dv) = config.delta_widths, config.delta_sizes
        keeps: dict[str, Kept] = {
            "projected": Tail(2 * keys + values, config.taps - 1),
            MEMORY: Recurrent(config.delta_heads, Dv, Dk),
        }
        return BlockSignature({"real": Columns(1)}, keeps=keeps, memory_scale=Dk**0.5)

    def block(self, config: Qwen3_5Config, kind: str = FULL) -> "DecoderBlock":
        from ane_book.models.base import layers
        from ane_families import delta
        from ane_families.convolved import OperatorBlock

        C, eps = config.hidden_size, config.rms_norm_eps
        operator: nn.Module = delta.GatedAttention(config, layers.NormThenRotate(config))
        if kind == DELTA:
            operator = delta.GatedDelta(
                C,
                heads=config.delta_heads,
                key_heads=config.delta_key_heads,
                sizes=config.delta_sizes,
                taps=config.taps,
                eps=eps,
            )
        return OperatorBlock(
            operator,
            layers.FeedForward(config),
            before_attention=layers.RMSNorm(C, eps),
            before_feed_forward=layers.RMSNorm(C, eps),
        )

    # --- tensors

    def parameters(self, config: Qwen3_5Config, kind: str = FULL) -> Parameters:
        found = super().parameters(config, kind)
        for name in ("before_attention.weight", "before_feed_forward.weight"):
            (norm,) = found[name]
            found[name] = (TensorSpec(norm.name, norm.shape, plus=1.0),)
        if kind == DELTA:
            outer = {n: parts for n, parts in found.items() if not n.startswith("attention.")}
            return _delta(config) | outer
        del found["attention.out.weight"]  # it is of `mixed`, behind the gate
        return found | _attention(config)

    def outer(self, config: Qwen3_5Config) -> dict[str, TensorSpec]:
        norm = TensorSpec("model.norm.weight", (config.hidden_size,), plus=1.0)
        return super().outer(config) | {"norm": norm}


class Qwen3_5WithVision(Qwen3_5):
    """`model_type` "qwen3_5": the text model of a checkpoint that also has a vision tower, and
    layers that guess tokens ahead, which are left out."""

    model_type = "qwen3_5"
    gguf = None  # llama.cpp has the text model alone

    def config(self, fields: dict) -> DecoderConfig:
        text = fields["text_config"]
        tied = fields.get("tie_word_embeddings", text.get("tie_word_embeddings"))
        return super().config(text | {"tie_word_embeddings": tied})

    def checkpoint(self, config: Qwen3_5Config) -> Checkpoint:
        own, left_out = super().checkpoint(config), ("model.visual.", "mtp.")
        return replace(own, layers="model.language_model.layers", left_out=left_out)

    def outer(self, config: Qwen3_5Config) -> dict[str, TensorSpec]:
        return {
            role: replace(tensor, name=tensor.name.replace("model.", "model.language_model.", 1))
            for role, tensor in super().outer(config).items()
        }


def _grouped(config: Qwen3_5Config, array: np.ndarray, size: int) -> np.ndarray:
    """Rows of the values' heads, `size` each: those of a key head side by side, as `transformers`
    has them, from llama.cpp's order, which has the first of every key head before the second."""
    heads = array.reshape(-1, config.delta_key_heads, size, *array.shape[1:])
    return heads.swapaxes(0, 1).reshape(array.shape)


def _attention(config: Qwen3_5Config) -> Parameters:
    """The parameters in which gated attention differs from Llama's."""
    (C, _, Q, KV), D, own = config.widths, config.head_dim, "self_attn"
    name, shape = f"{own}.q_proj.weight", (2 * Q, C)  # of each head its queries, then its gate
    queries, gate = (Half(name, shape, size=D, part=part) for part in (0, 1))
    return {
        "attention.qkv.weight": (
            queries,
            TensorSpec(f"{own}.k_proj.weight", (KV, C)),
            TensorSpec(f"{own}.v_proj.weight", (KV, C)),
        ),
        "attention.gate.weight": (gate,),
        "attention.mixed.weight": (TensorSpec(f"{own}.o_proj.weight", (C, Q)),),
        **head_norms(config, f"{own}.q_norm", f"{own}.k_norm", plus=1.0),
    }


def _delta(config: Qwen3_5Config) -> Parameters:
    """The parameters of a DeltaNet."""
    C, H, own = config.hidden_size, config.delta_heads, "linear_attn"
    keys, values = config.delta_widths
    mixed = 2 * keys + values
    rows = {"in_proj_qkv": mixed, "in_proj_z": values, "in_proj_b": H, "in_proj_a": H}
    taps = {
        f"attention.convolution.taps.{i}": (
            Tap(f"{own}.conv1d.weight", (mixed, 1, config.taps), number=i),
        )
        for i in range(config.taps)
    }
    return {
        "attention.inward.weight": tuple(
            TensorSpec(f"{own}.{name}.weight", (size, C)) for name, size in rows.items()
        ),
        **taps,
        "attention.dt_bias": (TensorSpec(f"{own}.dt_bias", (H,)),),
        "attention.a_log": (TensorSpec(f"{own}.A_log", (H,)),),
        "attention.weight": (TensorSpec(f"{own}.norm.weight", (config.delta_sizes[1],)),),
        "attention.out.weight": (TensorSpec(f"{own}.out_proj.weight", (C, values)),),
    }
