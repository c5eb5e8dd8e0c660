"""Normalisations; statistics in float32, one rounding, the output like x.

Letters: N batch, C channels, *D spatial dimensions.

Reference: coremltools `defs/iOS15/normalization.py`, `defs/iOS17/normalization.py`.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op
from .activation import per_channel


@op()
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta. x (N, C, *D), the others (C,)."""
    scale = (variance.float() + epsilon).rsqrt()
    if gamma is not None:
        scale = scale * gamma
    y = (x.float() - per_channel(mean, x)) * per_channel(scale, x)
    if beta is not None:
        y = y + per_channel(beta, x)
    return y.to(x.dtype)


@op()
def instance_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Zero mean and unit variance over *D for each sample and channel. x (N, C, *D), gamma (C,)."""
    # F.instance_norm refuses a single spatial element; a layer norm over *D is the same formula
    y = F.layer_norm(x.float(), x.shape[2:], eps=epsilon)
    if gamma is not None:
        y = y * per_channel(gamma, x)
    if beta is not None:
        y = y + per_channel(beta, x)
    return y.to(x.dtype)


@op()
def l2_norm(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """x / sqrt(sum of x^2 + epsilon), the sum over the last three axes. x (*B, C, H, W)."""
    wide = x.float()
    square_sum = torch.sum(wide * wide, (-3, -2, -1), keepdim=True)
    return (wide / (square_sum + epsilon).sqrt()).to(x.dtype)


@lru_cache
def _to_back(rank: int, axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The permutation that moves `axes` (in rising order) to the back, and its inverse."""
    normalised = sorted(axis % rank for axis in axes)
    order = [i for i in range(rank) if i not in normalised] + normalised
    return order, [order.index(i) for i in range(rank)]


@op()
def layer_norm(
    x: Tensor,
    axes: list[int] | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta over any `axes` (default: all).

    gamma and beta have the sizes of the normalised axes in rising order. On (1, C, 1, 1) with
    axes [1] the two permutations are views, and torch's kernel, which takes its statistics in
    float32, is the only pass over the data.
    """
    if axes == []:
        raise ValueError("axes=[] leaves nothing to take a mean of")
    rank = x.dim()
    order, back = _to_back(rank, tuple(range(rank)) if axes is None else tuple(axes))
    moved = x.permute(order)
    shape = moved.shape if axes is None else moved.shape[rank - len(axes) :]
    given = beta if gamma is None else gamma
    if given is not None and given.dtype != x.dtype:  # the two share a dtype, which may not be x's
        moved = moved.float()
        gamma = None if gamma is None else gamma.float()
        beta = None if beta is None else beta.float()
    return F.layer_norm(moved, shape, gamma, beta, epsilon).to(x.dtype).permute(back)


@op()
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta. x (N, C, *D)."""
    return F.local_response_norm(x.float(), size, alpha, beta, k).to(x.dtype)
