"""LFM2 with mixtures of experts: as LFM2, except that all layers but the first ones have a router
in place of the feed-forward. A gate is the sigmoid of a score, and a bias of each expert takes part
in the choice alone.

References: LFM2 technical report (arXiv 2511.23404); loss-free balancing (arXiv 2408.15664);
`transformers`, modeling_lfm2_moe.py; llama.cpp, conversion/lfm2.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from ane_book.models.base.architecture import FULL, GGUF, Parameters, TensorSpec
from ane_book.models.base.config import DecoderConfig
from ane_families.lfm2 import OPERATORS, OUTSIDE, Lfm2, Lfm2Config, fields_of_gguf
from ane_families.sparse import DENSE, Sparse, SparseConfig, gguf_experts, sparse_fields
from pydantic import Field

if TYPE_CHECKING:
    from torch import nn


class Lfm2MoeConfig(Lfm2Config, SparseConfig):
    """LFM2-MoE's hyperparameters."""

    expert_biases: bool
    gate_scale: Annotated[float, Field(gt=0, le=1000)]


def _fields(fields: dict, number: Callable[..., float]) -> dict:
    return sparse_fields(fields_of_gguf(fields, number), number) | {
        "num_dense_layers": number("leading_dense_block_count"),
        "routed_scaling_factor": number("expert_weights_scale", 1.0),
    }


class Lfm2Moe(Sparse, Lfm2):
    """`model_type` "lfm2_moe"."""

    model_type = "lfm2_moe"
    Config = Lfm2MoeConfig
    mlp = "feed_forward"
    matrices = ("w1", "w3", "w2")
    gguf = GGUF(
        "lfm2moe",
        OUTSIDE,
        OPERATORS
        | gguf_experts("feed_forward", "w1", "w3", "w2")
        | {"exp_probs_b.bias": "feed_forward.expert_bias"},
        _fields,
    )

    def config(self, fields: dict) -> DecoderConfig:
        return super().config(fields | {"block_auto_adjust_ff_dim": False})

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {
            "norm_gates": fields.get("norm_topk_prob", True),
            "expert_biases": fields.get("use_expert_bias", True),
            "gate_scale": fields.get("routed_scaling_factor", 1.0),
        }

    def sparse_layers(self, fields: dict, layers: int) -> list[bool]:
        return [i >= fields.get("num_dense_layers", 2) for i in range(layers)]

    def router(self, config: Lfm2MoeConfig) -> "nn.Module":
        from ane_families.layers import SigmoidRouter

        return SigmoidRouter(
            config.hidden_size,
            config.num_experts,
            config.experts_per_token,
            config.norm_gates,
            biased=config.expert_biases,
            scale=config.gate_scale,
        )

    def parameters(self, config, kind: str = FULL) -> Parameters:
        found = super().parameters(config, kind)
        if config.expert_biases and not kind.endswith(DENSE):
            biases = TensorSpec(f"{self.mlp}.expert_bias", (config.num_experts,))
            found["router.balance"] = (biases,)
        return found
