"""Attention as one op. Reference: coremltools `defs/iOS18/transformers.py`."""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op, other


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


@other("scaled_dot_product_attention", "documented", "attention-closed-row")
def attention_by_formula(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention with NaN in a row that the mask closes altogether: the softmax of -inf alone."""
    y = scaled_dot_product_attention(query, key, value, attn_mask)
    if attn_mask is None:
        return y
    is_closed = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask.isneginf()
    return y.masked_fill(is_closed.all(-1, keepdim=True), float("nan"))
