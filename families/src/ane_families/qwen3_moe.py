"""Qwen3 with mixtures of experts: as Qwen3, except that a router takes the k likeliest of E experts
in place of the feed-forward. `config.json` may leave single layers, or some of every few, dense.

References: Qwen3 technical report (arXiv 2505.09388); `transformers`, modeling_qwen3_moe.py;
llama.cpp, conversion/qwen.py.
"""

from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from ane_book.models.base.architecture import GGUF
from ane_book.models.base.dense import OUTER
from ane_families.qwen3 import NORMED, Qwen3
from ane_families.sparse import Sparse, SparseConfig, gguf_experts, sparse_fields

if TYPE_CHECKING:
    from torch import nn


class Qwen3Moe(Sparse, Qwen3):
    """`model_type` "qwen3_moe"."""

    model_type = "qwen3_moe"
    gguf = GGUF("qwen3moe", OUTER, NORMED | gguf_experts("mlp", *Sparse.matrices), sparse_fields)

    def read(self, fields: dict) -> dict:
        return super().read(fields) | {"norm_gates": fields.get("norm_topk_prob", False)}

    def sparse_layers(self, fields: dict, layers: int) -> list[bool]:
        step, dense = fields.get("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not isinstance(step, int) or step < 1:
            raise UnsupportedModel(
                f"config.json: decoder_sparse_step = {step!r:.80} with mlp_only_layers = "
                f"{dense!r:.200}; a number of layers from 1 on, and a list of layers, are wanted"
            )
        return [i not in dense and (i + 1) % step == 0 for i in range(layers)]

    def router(self, config: SparseConfig) -> "nn.Module":
        from ane_families.layers import SoftmaxRouter

        return SoftmaxRouter(
            config.hidden_size, config.num_experts, config.experts_per_token, config.norm_gates
        )
