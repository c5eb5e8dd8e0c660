"""`Sparse`, what a decoder adds to its dense family if most layers have a mixture of experts in
place of the feed-forward.

A class takes it before that family, as `class Qwen3Moe(Sparse, Qwen3)`. Layers without a mixture
have kinds of block of their own, those of the dense family with `DENSE` behind their names.

Letters: see `ane_book.models.base`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ane_book.models.base.architecture import FULL, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig, Width
from ane_book.models.base.dense import Dense
from ane_book.models.base.experts import Experts, check_taken
from ane_book.models.base.signature import BlockSignature
from ane_book.options import Strategy
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn


DENSE = "_dense"
MOST = 100_000  # experts of all layers, ten times the most of a published model


class SparseConfig(DecoderConfig):
    """The hyperparameters of a decoder with mixtures of experts. `intermediate_size` is that of
    the layers without one."""

    sparse_layers: tuple[bool, ...]  # of every layer, whether it has a mixture
    expert_size: Width  # F of an expert
    num_experts: Annotated[int, Field(gt=0, le=2048)]  # E; order is counted in fp16
    experts_per_token: Width  # k
    norm_gates: bool  # whether the gates of a token are divided by their sum
    experts: Strategy = "packed"  # how they are laid out

    @model_validator(mode="after")
    def _check_choice(self) -> "SparseConfig":
        check_taken(self.experts_per_token, self.num_experts)
        if sum(self.sparse_layers) * self.num_experts > MOST:
            raise ValueError(f"{sum(self.sparse_layers)} layers of {self.num_experts} experts")
        return self


class Sparse(Dense[Any]):
    """The hooks that a mixture changes, around those of the dense family."""

    Config: ClassVar[type[DecoderConfig]] = SparseConfig
    mlp = "mlp"  # what a checkpoint calls a layer's feed-forward or mixture
    matrices = ("gate_proj", "up_proj", "down_proj")  # and the matrices of an expert

    def read(self, fields: dict) -> dict:
        given = super().read(fields)
        experts = fields.get("num_experts") or fields["num_local_experts"]
        return given | {
            "sparse_layers": self.sparse_layers(fields, min(given["num_layers"], 10_000)),
            "expert_size": fields["moe_intermediate_size"],
            "num_experts": experts,
            "experts_per_token": fields["num_experts_per_tok"],
        }

    @abstractmethod
    def sparse_layers(self, fields: dict, layers: int) -> list[bool]:
        """Of each of so many layers, whether it has a mixture."""

    @abstractmethod
    def router(self, config) -> "nn.Module":
        """What maps x (1, C, 1, T) to the gates of the experts (1, E, 1, T)."""

    # --- blocks, and what the host gives them

    def kinds(self, config) -> list[str]:
        own = zip(super().kinds(config), config.sparse_layers, strict=True)
        return [kind if sparse else kind + DENSE for kind, sparse in own]

    def signature(self, config, kind: str) -> BlockSignature:
        own = super().signature(config, kind.removesuffix(DENSE))
        return own if kind.endswith(DENSE) else replace(own, mixture=self.experts(config))

    def experts(self, config) -> Experts:
        return Experts(
            config.num_experts,
            config.hidden_size,
            config.expert_size,
            config.experts,
            taken=config.experts_per_token,
            theirs=f"{self.mlp}.experts",
            matrices=self.matrices,
        )

    def block(self, config, kind: str = FULL) -> Any:
        dense: Any = super().block(config, kind.removesuffix(DENSE))
        if kind.endswith(DENSE):
            return dense
        from ane_book.models.base.experts.layers import Mixture, swiglu
        from ane_families.layers import MixtureBlock

        return MixtureBlock(dense, self.router(config), Mixture(self.experts(config), swiglu))

    # --- tensors

    def parameters(self, config, kind: str = FULL) -> Parameters:
        found = super().parameters(config, kind.removesuffix(DENSE))
        if kind.endswith(DENSE):
            return found
        around = {n: parts for n, parts in found.items() if not n.startswith("feed_forward.")}
        scores = TensorSpec(f"{self.mlp}.gate.weight", (config.num_experts, config.hidden_size))
        return {
            **around,
            "router.scores.weight": (scores,),
            **self.experts(config).parameters(),
        }


def gguf_experts(mlp: str, gate: str, up: str, down: str) -> dict[str, str]:
    """GGUF's names of the tensors of a mixture; the other names as in `Sparse`."""
    stacks = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    named = {ours: f"{mlp}.experts.*.{name}" for ours, name in stacks.items()}
    return {"ffn_gate_inp": f"{mlp}.gate", **named}


def sparse_fields(fields: dict, number: Callable[..., float]) -> dict:
    """The fields of config.json that the metadata of a GGUF says of a mixture."""
    return fields | {
        "num_experts": number("expert_count"),
        "num_experts_per_tok": number("expert_used_count"),
        "moe_intermediate_size": number("expert_feed_forward_length"),
        "norm_topk_prob": bool(number("expert_weights_norm", True)),  # llama.cpp's default
    }
