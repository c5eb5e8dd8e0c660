"""Reductions over `axes` (all axes when there are none); the output has the dtype of x.

Half sums in float32 and is rounded once. int32 stays int32: sums and products are exact and wrap,
means and logarithms are cut towards zero, as coremltools' own value inference does.

Reference: coremltools `defs/iOS15/reduction.py`, `defs/iOS17/reduction.py`.
"""

from collections.abc import Callable

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


def _reduction(reduce: Callable) -> Callable:
    """What `reduce` makes of x, the axes, and whether these stay, in the dtype of x."""

    def reduction(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
        return reduce(x, _dims(x, axes), keep_dims).to(x.dtype)

    return reduction


def _sum(kinds: dict, before: Callable = lambda x: x, after: Callable = lambda x: x) -> Callable:
    def sum_(x: Tensor, axes: list[int], keep_dims: bool) -> Tensor:
        return after(torch.sum(before(x.to(kinds[x.dtype])), axes, keep_dims, dtype=kinds[x.dtype]))

    return sum_


for _name, _reduce in {
    "reduce_l1_norm": _sum(_SUM, torch.abs),
    "reduce_l2_norm": _sum(_REAL, torch.square, torch.sqrt),
    "reduce_log_sum": _sum(_REAL, after=torch.log),
    "reduce_max": torch.amax,
    "reduce_mean": lambda x, axes, keep: torch.mean(x, axes, keep, dtype=_REAL[x.dtype]),
    "reduce_min": torch.amin,
    "reduce_sum": _sum(_SUM),
    "reduce_sum_square": _sum(_SUM, torch.square),
}.items():
    op(_name)(_reduction(_reduce))


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
def reduce_log_sum_exp(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """Natural logarithm of the sum of e^x, without overflow."""
    return torch.logsumexp(x.to(_REAL[x.dtype]), _dims(x, axes), keep_dims).to(x.dtype)


@other("reduce_log_sum_exp", "reported", "log-sum-exp")
def plain_log_sum_exp(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """log(sum(e^x)) step by step in the dtype of x, so that e^x may overflow."""
    wide = x if x.is_floating_point() else x.double()
    return torch.sum(wide.exp(), axes, keep_dims, dtype=wide.dtype).log().to(x.dtype)


@op()
def reduce_prod(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
    """The product; torch multiplies along one axis at a time."""
    product = x.to(_SUM[x.dtype])
    # from the last axis on, so that dropping one leaves the numbers of the others
    for axis in sorted((a % x.dim() for a in _dims(x, axes)), reverse=True):
        product = torch.prod(product, axis, keep_dims, dtype=product.dtype)
    return product.to(x.dtype)
