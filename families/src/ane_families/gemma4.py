"""Gemma 4, text only: as Gemma 3, except that

its full layers have heads of another size, more or fewer of them for keys and values, and may take
the keys, before their norm, as values; only some of their rotary pairs turn; values are normed, and
norms multiply by their weight alone; scores are not scaled; the last layers have no keys and values
of their own, but those of the last layer of their kind before them, and may have a wider
feed-forward; each layer ends in a scale. Small models give every layer an input of its own:

    own = (norm(W @ embedding) + table[token]) / sqrt(2)              # (L, P), by the token alone
    hidden = hidden + norm(W_up @ (gelu(W_down @ hidden) * own))      # (1, C, 1, T)

The embedding is the token's, so `own` depends on the token alone: conversion computes it once for
the whole vocabulary, and the host takes rows of that table as it does of the embedding.

Letters: see `ane_book.models.base`; P channels of a layer's own input.

References: `transformers`, modeling_gemma4.py and configuration_gemma4.py; proportional rotary
embedding: modeling_rope_utils.py there.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
import math
from typing import TYPE_CHECKING, Annotated, ClassVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host
from ane_book.models.base.architecture import FULL, Checkpoint, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, Width
from ane_book.models.base.dense import head_norms
from ane_book.models.base.signature import BlockSignature, OwnInput, attention
from ane_book.rope import Factor, Rotary
from ane_families.alternating import SLIDING, TYPES, Local, LocalConfig, read_kinds
import numpy as np
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn


#: Kinds of block: what stands behind FULL or SLIDING, where another layer has its keys and values.
LENDING, BORROWING = "_lending", "_borrowing"

#: The `rope_parameters` that `transformers` assumes if config.json has none.
ROPE = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


class Gemma4Config(LocalConfig):
    """Gemma 4's hyperparameters; heads of keys and values, and their size, are sliding layers'."""

    full_head_dim: Width  # D of full layers
    full_kv_heads: Width  # K of full layers
    keys_as_values: bool  # full layers have no values of their own
    borrowing_layers: Annotated[int, Field(ge=0)]  # the last ones, without keys and values
    wide_borrowers: bool  # whether their feed-forward is twice as wide
    per_layer_size: Annotated[int, Field(ge=0, le=1 << 20)]  # P; 0: layers have no own input
    softcap: Factor | None

    @model_validator(mode="after")
    def _check_layers(self) -> "Gemma4Config":
        if self.num_heads % self.full_kv_heads or self.full_head_dim % 2:
            raise ValueError(
                f"{self.num_heads} heads of {self.full_head_dim} dimensions do not go with "
                f"{self.full_kv_heads} KV heads in full layers"
            )
        first = self.num_layers - self.borrowing_layers
        if lacking := {*self.layer_types[first:]} - {*self.layer_types[: max(first, 0)]}:
            raise ValueError(
                f"{self.borrowing_layers} of {self.num_layers} layers share keys and values, and "
                f"none before them is {' or '.join(sorted(lacking))}"
            )
        return self

    def of(self, kind: str) -> "Gemma4Config":
        """The same with the sizes of a layer of this kind."""
        wide = self.wide_borrowers and kind.endswith(BORROWING)
        changes = {"intermediate_size": self.intermediate_size * (2 if wide else 1)}
        if not kind.startswith(SLIDING):
            changes |= {"head_dim": self.full_head_dim, "num_kv_heads": self.full_kv_heads}
        return self.model_copy(update=changes)


class Gemma4(Local[Gemma4Config]):
    """`model_type` "gemma4_text". Mixtures of experts, beside the feed-forward, are refused."""

    model_type = "gemma4_text"
    Config: ClassVar[type[DecoderConfig]] = Gemma4Config
    layers = "model.layers"  # of `checkpoint`
    left_out: tuple[str, ...] = ()
    rope_theta = 1000000.0
    scalings = ("proportional",)
    fixed: ClassVar = {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "enable_moe_block": False,
        "use_bidirectional_attention": "vision",  # that of images; text is causal
    }

    # --- config.json

    def config(self, fields: dict) -> DecoderConfig:
        return super().config(fields | {"rope_parameters": fields.get("rope_parameters") or ROPE})

    def read(self, fields: dict) -> dict:
        kinds = read_kinds(fields, lambda i: TYPES[bool((i + 1) % 6)])
        kinds[-1:] = [FULL]  # whatever the file says
        local = fields.get("rope_local_base_freq")
        return super().read(fields) | {
            "sliding_window": fields["sliding_window"],
            "rope_local_theta": 10000.0 if local is None else local,
            "layer_types": kinds,
            "tied_embeddings": fields.get("tie_word_embeddings", True),
            "borrowing_layers": fields.get("num_kv_shared_layers") or 0,
            "wide_borrowers": fields.get("use_double_wide_mlp") or False,
            "keys_as_values": fields.get("attention_k_eq_v") or False,
            "per_layer_size": self._per_layer(fields),
            "softcap": fields.get("final_logit_softcapping") or None,
            **self._full_heads(fields, kinds),
        }

    def read_scaling(self, fields: dict) -> dict | None:
        scaling = super().read_scaling(fields)
        share = {"partial_rotary_factor": fields.get("partial_rotary_factor", 1.0)}
        return scaling and scaling | share

    def _full_heads(self, fields: dict, kinds: list[str]) -> dict:
        """K and D of full layers: `transformers` writes them for each layer by its number, and
        published files once."""
        by_layer = fields.get("per_layer_config")
        if by_layer is None:
            shares = fields.get("attention_k_eq_v")
            heads = fields.get("num_global_key_value_heads") if shares else None
            given = {"head_dim": fields.get("global_head_dim", 512), "num_key_value_heads": heads}
        else:
            own = {int(i): dict(heads) for i, heads in dict(by_layer).items()}
            given = own.get(len(kinds) - 1, {})  # the last layer is full
            if own != {i: given for i, kind in enumerate(kinds) if kind == FULL and given}:
                raise UnsupportedModel(
                    "config.json: per_layer_config with heads that differ between layers of one "
                    f"type is not supported for {self.model_type} models"
                )
        return {
            "full_head_dim": given.get("head_dim") or fields["head_dim"],
            "full_kv_heads": given.get("num_key_value_heads") or fields["num_key_value_heads"],
        }

    def _per_layer(self, fields: dict) -> int:
        """P, if the table of the layers' own inputs has a row for every token."""
        rows, V = fields.get("vocab_size_per_layer_input", 262144), fields["vocab_size"]
        size = fields.get("hidden_size_per_layer_input", 256) or 0
        if size and rows != V:
            raise UnsupportedModel(
                f"config.json: vocab_size_per_layer_input = {rows!r} of a vocabulary of {V!r} is "
                f"not supported for {self.model_type} models"
            )
        return size

    # --- blocks, and what the host gives them

    def kinds(self, config: Gemma4Config) -> list[str]:
        first = config.num_layers - config.borrowing_layers
        before, behind = config.layer_types[:first], config.layer_types[first:]
        lending = {first - 1 - before[::-1].index(kind) for kind in {*behind}}
        own = [kind + LENDING if i in lending else kind for i, kind in enumerate(before)]
        return own + [kind + BORROWING for kind in behind]

    def signature(self, config: Gemma4Config, kind: str) -> BlockSignature:
        base = kind.partition("_")[0]
        table, mask = self.inputs[base]
        ending = "_local" if base == SLIDING else ""  # of the cache's names: heads differ in size
        found = attention(config.of(kind), table, mask, ending)
        P = config.per_layer_size
        rows = OwnInput(P, partial(self.per_layer_rows, config)) if P else None
        found = replace(found, own=rows, lends=kind.endswith(LENDING))
        return replace(found, keeps={}, reads=found.caches) if kind.endswith(BORROWING) else found

    def rotary(self, config: Gemma4Config) -> Rotary:
        D = config.full_head_dim
        return replace(config.rotary, head_dim=D, rotary_dim=D, attention_scale=1.0)

    def host(self, config: Gemma4Config) -> Host:
        found, D = super().host(config), config.head_dim
        local = replace(found.rotary["rope_local"], head_dim=D, rotary_dim=D)
        changes = {
            "embedding_scale": math.sqrt(config.hidden_size),
            "rotary": found.rotary | {"rope_local": local},
        }
        return found.model_copy(update=changes)

    def ends(self, config: Gemma4Config) -> "dict[str, nn.Module]":
        from ane_families.layers import Softcap

        bound = {} if config.softcap is None else {"bound": Softcap(config.softcap)}
        return super().ends(config) | bound

    def block(self, config: Gemma4Config, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base import layers
        from ane_families import borrowing
        from ane_families.layers import gelu_tanh

        own, C, P = config.of(kind), config.hidden_size, config.per_layer_size
        eps, lends = config.rms_norm_eps, kind.endswith(LENDING)
        borrows = kind.endswith(BORROWING)
        norms = ("before_attention", "after_attention", "before_feed_forward", "after_feed_forward")
        return borrowing.GatedBlock(
            borrowing.Borrowing(own) if borrows else borrowing.Lending(own, lends),
            layers.FeedForward(own, gelu_tanh),
            gate=borrowing.Gate(C, P, eps) if P else None,
            **{name: layers.RMSNorm(C, eps) for name in norms},
        )

    # --- tensors

    def parameters(self, config: Gemma4Config, kind: str = FULL) -> Parameters:
        own, C, P = config.of(kind), config.hidden_size, config.per_layer_size
        found = super().parameters(own, kind) | {
            "after_attention.weight": (_norm("post_attention_layernorm", C),),
            "before_feed_forward.weight": (_norm("pre_feedforward_layernorm", C),),
            "after_feed_forward.weight": (_norm("post_feedforward_layernorm", C),),
            **head_norms(own, "self_attn.q_norm", "self_attn.k_norm"),
        }
        q, k, _ = found["attention.qkv.weight"]
        if kind.endswith(BORROWING):
            found["attention.qkv.weight"] = (q,)
            found["attention.prepare.weight"] = found["attention.prepare.weight"][:1]
        elif config.keys_as_values and not kind.startswith(SLIDING):
            found["attention.qkv.weight"] = q, k, k
        gate = {
            "gate.down.weight": (TensorSpec("per_layer_input_gate.weight", (P, C)),),
            "gate.up.weight": (TensorSpec("per_layer_projection.weight", (C, P)),),
            "gate.norm.weight": (_norm("post_per_layer_input_norm", C),),
        }
        return found | (gate if P else {}) | {"scale": (TensorSpec("layer_scalar", (1,)),)}

    def outer(self, config: Gemma4Config) -> dict[str, TensorSpec]:
        C, P = config.hidden_size, config.per_layer_size
        rows = config.num_layers * P
        table, matrix = "embed_tokens_per_layer", "per_layer_model_projection"
        own = {
            "per_layer.table": TensorSpec(f"model.{table}.weight", (config.vocab_size, rows)),
            "per_layer.projection": TensorSpec(f"model.{matrix}.weight", (rows, C)),
            "per_layer.norm": _norm("model.per_layer_projection_norm", P),
        }
        return super().outer(config) | (own if P else {})

    def checkpoint(self, config: Gemma4Config) -> Checkpoint:
        """Layers that do not use keys and values of their own may have them."""
        found, names = super().checkpoint(config), ("k_proj", "v_proj", "k_norm", "v_norm")
        behind = range(config.num_layers - config.borrowing_layers, config.num_layers)
        own = {f"{self.layers}.{i}.self_attn.{name}.weight" for i in behind for name in names}
        return Checkpoint(self.layers, left_out=self.left_out, repeats=found.repeats | own)

    def per_layer_rows(
        self,
        config: Gemma4Config,
        read: Callable[[str], np.ndarray],
        embedding: np.ndarray,
        table: Iterator[np.ndarray],
    ) -> Iterator[np.ndarray]:
        """As `OwnInput` says."""
        outer, P = self.outer(config), config.per_layer_size
        matrix, norm = (read(outer[f"per_layer.{name}"].name) for name in ("projection", "norm"))
        at, eps = 0, config.rms_norm_eps
        for own in table:  # (n, L * P)
            columns = embedding[at : at + len(own)].astype(np.float32)  # (n, C)
            x = (columns @ matrix.T).reshape(len(own), -1, P)  # sqrt(C), and 1 / sqrt(C), cancel
            x = x / np.sqrt(np.square(x).mean(axis=2, keepdims=True) + np.float32(eps)) * norm
            yield (x.reshape(own.shape) + own * np.float32(math.sqrt(P))) * np.float32(0.5**0.5)
            at += len(own)


class Gemma4WithVision(Gemma4):
    """`model_type` "gemma4": the text model of a checkpoint that also sees, or hears, whose towers
    are left out."""

    model_type = "gemma4"
    layers = "model.language_model.layers"
    left_out = ("model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                "model.embed_audio.")  # fmt: skip

    def config(self, fields: dict) -> DecoderConfig:
        text = fields["text_config"]
        tied = fields.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
        return super().config(text | {"tie_word_embeddings": tied})

    def outer(self, config: Gemma4Config) -> dict[str, TensorSpec]:
        return {
            role: replace(tensor, name=tensor.name.replace("model.", "model.language_model.", 1))
            for role, tensor in super().outer(config).items()
        }


def _norm(name: str, size: int) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (size,))
