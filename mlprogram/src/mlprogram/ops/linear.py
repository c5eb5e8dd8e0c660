"""Matrix products; half is multiplied and summed in float32 and rounded once, int32 stays int32.

Reference: coremltools `defs/iOS15/linear.py`, `defs/iOS17/linear.py`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op


@op()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. x (*, D_in), weight (D_out, D_in), bias (D_out,) -> (*, D_out)."""
    if x.dtype == torch.int32:
        y = torch.matmul(x, weight.to(torch.int32).mT)
        return y if bias is None else y + bias.to(torch.int32)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


@op()
def matmul(
    x: Tensor,
    y: Tensor,
    transpose_x: bool = False,
    transpose_y: bool = False,
    _out: list | None = None,
) -> Tensor:
    """x @ y by numpy's rules, each with its last two axes swapped first on request.

    From iOS 17 on a constant factor may have another dtype than the other one, which then gives the
    result its dtype; the declared output type says which of the two it was.
    """
    dtype = x.dtype if x.dtype == y.dtype or _out is None else _out[0][0]
    if dtype != torch.int32:
        x, y = x.float(), y.float()
    elif x.dtype != y.dtype:
        x, y = x.to(dtype), y.to(dtype)
    # a transposition has no effect on a vector
    if transpose_x and x.dim() > 1:
        x = x.mT
    if transpose_y and y.dim() > 1:
        y = y.mT
    return torch.matmul(x, y).to(dtype)


@op()
def einsum(values: list[Tensor], equation: str) -> Tensor:
    """A product over axis -1 of the first and -3 of the second tensor, the other axes being batch.

    MIL knows "nchw,nwhu->nchu" and "chw,whr->chr", under any letters; axes of size 1 broadcast.
    """
    x, y = values
    return torch.einsum(equation, x.float(), y.float()).to(x.dtype)
