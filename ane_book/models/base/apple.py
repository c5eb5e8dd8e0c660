"""Attention in the form that Apple asks for on the Neural Engine: each head apart, tokens last.

Heads are (heads, D, 1, T), the cache is (1, K*D, 1, S), the mask (1, S+T, 1, T), rotary tables are
(1, D, 1, T): see `ane_book.layout`. Parameters and results are those of the form by rows.

References: apple/coreai-models@86b363d, neural_engine_rules.md, "Per-head attention" and the two
sections after it; apple/ml-ane-transformers@da64000, multihead_attention.py.
"""

import torch
from torch import Tensor
import torch.nn.functional as F


def split_heads(x: Tensor, D: int) -> Tensor:
    """The heads of (1, heads * D, 1, T) as (heads, D, 1, T), which moves no number."""
    return x.view(-1, D, 1, x.shape[3])


def together(x: Tensor) -> Tensor:
    """Keys or values (K, D, 1, T) as the cache has them, (1, K*D, 1, T)."""
    return x.reshape(1, -1, 1, x.shape[3])


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    group: int,
    D: int,
) -> Tensor:
    """q (H, D, 1, T), k and v (K, D, 1, T), the mask and one layer's cache -> (1, H*D, 1, T).

    Each query head has two products, in the einsums that Apple writes, with a softmax over the
    channels between them. The first takes keys by tokens, so they are transposed once for all
    heads. The rotary tables have already applied the scale 1/sqrt(D) (`ane_book.rope`).

    group: G, query heads to a key/value head.
    """
    keys = torch.cat([keys, together(k)], dim=3).transpose(1, 3)  # (1, S+T, 1, K*D)
    values = torch.cat([values, together(v)], dim=3)  # (1, K*D, 1, S+T)
    of_keys, of_values, heads = keys.split(D, dim=3), values.split(D, dim=1), []
    for h, query in enumerate(q.split(1)):
        scores = torch.einsum("bchq,bkhc->bkhq", query, of_keys[h // group])
        weights = F.softmax(scores + mask, dim=1)  # (1, S+T, 1, T)
        heads.append(torch.einsum("bkhq,bchk->bchq", weights, of_values[h // group]))
    return torch.cat(heads, dim=1)
