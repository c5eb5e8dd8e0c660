"""A whole decoder in PyTorch: the library's own blocks one after another, and the head."""

from collections.abc import Callable, Mapping
from typing import Any

from ane_book.models import find
from ane_book.models.base.decoder import Head, block_weights, head_weights
import numpy as np
import torch
from torch import Tensor


@torch.inference_mode()
def run_layers(
    config: Any,
    read: Callable[[str], np.ndarray],
    hidden: Tensor,
    given: Mapping[str, Tensor],
    slots: int,
) -> Tensor:
    """The logits (1, V, 1, T) of a dense decoder for T tokens with nothing before them.

    read(name): a tensor by its `transformers` name, as `block_weights` takes it. hidden: the
    tokens' embeddings (1, C, 1, T). given: what the host computes, by name. slots: of the empty
    cache. One layer at a time is in memory.
    """
    architecture, cache = find(config.architecture), (1, config.num_kv_heads, slots)
    empty = torch.zeros(*cache, config.head_dim)
    signatures = architecture.signatures(config)
    for i, (kind, signature) in enumerate(zip(signatures.names, signatures, strict=True)):
        layer = architecture.block(config, kind).eval()
        layer.load_state_dict(block_weights(config, i, read))
        hidden, *_ = layer(hidden, *(given[name] for name in signature.host), empty, empty)
    head = Head(config, (config.vocab_size,))
    head.load_state_dict(head_weights(config, (config.vocab_size,), read))
    return head(hidden)[0]
