"""Reductions over `axes` (all axes when there are none); the output has the dtype of x.

Half sums in float32 and is rounded once. int32 stays int32: sums and products are exact and wrap,
means and logarithms are cut towards zero, as coremltools' own value inference does.

Reference: coremltools `defs/iOS15/reduction.py`, `defs/iOS17/reduction.py`.
"""

import torch
from torch import Tensor

from . import op, other
from .elementwise_unary import DTYPES

# what sums, and what a formula beyond sums is evaluated in
_SUM = {torch.float16: torch.float32, torch.float32: torch.float32, torch.int32: torch.int32}
_REAL = {torch.float16: torch.float32, torch.float32: torch.float32, torch.int32: torch.float64}


def _dims(x: Tensor, axes: list[int] | None) -> list[int]:
    """The axes to reduce, all of them when none are named."""
    return list(range(x.dim())) if axes is None else axes


@op()
def reduce_argmax(
    x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Tensor:
    """Index of the greatest value along `axis`, the first one among equals."""
    return torch.argmax(x, axis, keep_dims).to(DTYPES[output_dtype.lower()])


@op()
def reduce_argmin(
    x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Tensor:
    """Index of the least value along `axis`, the first one among equals."""
    return torch.argmin(x, axis, keep_dims).to(DTYPES[output_dtype.lower()])


@op()
def reduce_l1_norm(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Sum of |x|."""
    return torch.sum(x.abs(), axes, keep_dims, dtype=_SUM[x.dtype]).to(x.dtype)


@op()
def reduce_l2_norm(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Square root of the sum of x^2."""
    wide = x.to(_REAL[x.dtype])
    return torch.sum(wide * wide, axes, keep_dims).sqrt().to(x.dtype)


@op()
def reduce_log_sum(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Natural logarithm of the sum."""
    return torch.sum(x, axes, keep_dims, dtype=_REAL[x.dtype]).log().to(x.dtype)


@op()
def reduce_log_sum_exp(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Natural logarithm of the sum of e^x, without overflow."""
    return torch.logsumexp(x.to(_REAL[x.dtype]), _dims(x, axes), keep_dims).to(x.dtype)


@other("reduce_log_sum_exp", "reported", "log-sum-exp")
def plain_log_sum_exp(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """log(sum(e^x)) step by step in the dtype of x, so that e^x may overflow."""
    wide = x if x.is_floating_point() else x.double()
    return torch.sum(wide.exp(), axes, keep_dims, dtype=wide.dtype).log().to(x.dtype)


@op()
def reduce_max(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The greatest value."""
    return torch.amax(x, _dims(x, axes), keep_dims)


@op()
def reduce_mean(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The mean."""
    return torch.mean(x, axes, keep_dims, dtype=_REAL[x.dtype]).to(x.dtype)


@op()
def reduce_min(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The least value."""
    return torch.amin(x, _dims(x, axes), keep_dims)


@op()
def reduce_prod(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The product; torch multiplies along one axis at a time."""
    product = x.to(_SUM[x.dtype])
    # from the last axis on, so that dropping one leaves the numbers of the others
    for axis in sorted((a % x.dim() for a in _dims(x, axes)), reverse=True):
        product = torch.prod(product, axis, keep_dims, dtype=product.dtype)
    return product.to(x.dtype)


@op()
def reduce_sum(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The sum."""
    return torch.sum(x, axes, keep_dims, dtype=_SUM[x.dtype]).to(x.dtype)


@op()
def reduce_sum_square(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Sum of x^2."""
    wide = x.to(_SUM[x.dtype])
    return torch.sum(wide * wide, axes, keep_dims, dtype=wide.dtype).to(x.dtype)
