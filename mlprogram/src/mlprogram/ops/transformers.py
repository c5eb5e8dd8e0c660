"""Attention as one op. Reference: coremltools `defs/iOS18/transformers.py`."""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op


@op()
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """softmax(query key' / sqrt(E) + mask) value, in float32, rounded once.

    query (B, *, L, E), key (B, *, S, E), value (B, *, S, EV) -> (B, *, L, EV); the mask broadcasts
    to (B, *, L, S): bool says which positions take part, floats are added. A row that a bool mask
    closes altogether gives 0, as in torch.
    """
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    if attn_mask is not None and attn_mask.dim() == 1:  # torch wants two axes
        attn_mask = attn_mask.unsqueeze(0)
    y = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask)
    return y.to(query.dtype)
