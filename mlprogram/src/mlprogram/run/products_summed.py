"""Sums of products as the Neural Engine is published to make them, product by product.

`conv`, `linear`, `matmul` and `einsum` become products of matrices, whose products are made one by
one in blocks that fit the processor's cache: in float32 a product of two halves is exact, and so is
its rounding to a step of 2^-16; they are added in float64, which holds every such sum. That takes
about half a nanosecond a product for each of two faults, on one core.

Letters: B batch, M rows, K terms of a sum, N columns, G groups, P positions.
"""

from collections.abc import Callable
from typing import Any

from mlprogram.ops.conv import pad_spatial, resolve_padding
import numpy as np
import torch
from torch import Tensor

__all__ = ["LOST", "SUMS", "summed", "to_half"]

#: The ops that sum products.
SUMS = frozenset(["conv", "conv_transpose", "linear", "matmul", "einsum"])

STEPS = 2.0**16  # steps of the accumulator in 1
LOST = 32_768  # a sum of this size is infinite
SMALLEST = 2.0**-14  # of normal numbers; what is smaller has this one's exponent
DROPPED = -17  # exponents of two factors that add up to this or less drop their product
BLOCK = 2**16  # products at a time


def summed(kind: str, function: Callable, faults: frozenset[str]) -> Callable:
    """An op of `SUMS` with these faults: its result is rounded to half precision at the end."""
    singly = MATRICES.get(kind) if faults & {"accumulator", "products"} else None

    def run(**given: Any) -> Tensor:
        if singly is None:  # no product is changed
            wide = {key: _wide(value) for key, value in given.items()}
            return _result(function(**wide).double(), faults)
        return _result(singly(faults, **given), faults)

    changed = faults & {"accumulator", "products", "rounding", "subnormals"}
    return run if changed else function


def _result(y: Tensor, faults: frozenset[str]) -> Tensor:
    """A sum in float64 as the half that the engine would give."""
    if "accumulator" in faults:
        y = torch.where(y.abs() >= LOST, y.sign() * torch.inf, away(y * STEPS) / STEPS)
    half = to_half(y, "rounding" in faults)
    return torch.where(half.abs() < SMALLEST, 0, half) if "subnormals" in faults else half


def to_half(y: Tensor, halves_away: bool) -> Tensor:
    """Round float64 to half once: halves away from zero, or to the even neighbour."""
    exponent = (torch.frexp(y).exponent - 1).clamp(-14, 16)
    step = torch.ldexp(torch.ones_like(y), exponent - 10)
    steps = y / step
    return ((away(steps) if halves_away else steps.round()) * step).half()


def away(x: Tensor) -> Tensor:
    """The nearest integer, halves away from zero; exact for products of two halves in float32."""
    return x.new_tensor(0.5).copysign(x).add_(x).trunc_()


# --- sums of products -----------------------------------------------------------------------------


def _products(faults: frozenset[str], a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """a (*B, M, K) @ b (*B, K, N) + start, product by product, in float64 (*B, M, N).

    B broadcasts; start broadcasts with the result and is in the accumulator from the beginning.
    """
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (m.expand(*batch, *m.shape[-2:]) for m in (a, b.mT))  # (*B, M, K), (*B, N, K)
    y = torch.empty(*batch, a.shape[-2], b.shape[-2], dtype=torch.float64)
    for index in np.ndindex(*batch):
        _matrix(faults, a[index], b[index], y[index])
    if start is not None:
        start = start.double()
        y += away(start * STEPS) / STEPS if "accumulator" in faults else start
    return y


def _matrix(faults: frozenset[str], a: Tensor, b: Tensor, y: Tensor) -> None:
    """Sums of a (M, K) with b (N, K) into y (M, N)."""
    fixed, dropping = "accumulator" in faults, "products" in faults
    few = max(1, BLOCK // max(1, a.shape[1]))
    for first in range(0, len(b), few):
        columns = b[first : first + few].float()  # (n, K)
        needed = torch.ldexp(torch.ones_like(columns), DROPPED + 1 - _exponent(columns))
        columns = columns * STEPS if fixed else columns
        rows = max(1, few // len(columns))
        for row in range(0, len(a), rows):
            other = a[row : row + rows, None].float()  # (m, 1, K)
            each = other * columns  # (m, n, K)
            if dropping:
                each.masked_fill_(other.abs().clamp_min_(SMALLEST) < needed, 0)
            each = away(each) if fixed else each
            y[row : row + rows, first : first + few] = each.sum(-1, dtype=torch.float64)
    if fixed:
        y /= STEPS


def _exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|), as integers; -14 for what is smaller than 2^-14."""
    return (torch.frexp(x).exponent - 1).clamp_min(-14).where(x != 0, -14)


def _wide(value: Any) -> Any:
    """Half tensors, in lists too, in float32; anything else as it is."""
    if isinstance(value, list):
        return [_wide(one) for one in value]
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value


# --- ops as products of matrices ------------------------------------------------------------------


def _linear(
    faults: frozenset[str], x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y = _products(faults, weight, x.reshape(-1, x.shape[-1]).mT, _column(bias))
    return y.mT.reshape(*x.shape[:-1], len(weight))


def _column(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[..., None]


def _matmul(
    faults: frozenset[str],
    x: Tensor,
    y: Tensor,
    transpose_x: bool = False,
    transpose_y: bool = False,
    _out: object = None,
) -> Tensor:
    a = x[None] if x.dim() == 1 else x.mT if transpose_x else x
    b = y[:, None] if y.dim() == 1 else y.mT if transpose_y else y
    result = _products(faults, a, b)
    result = result.squeeze(-2) if x.dim() == 1 else result
    return result.squeeze(-1) if y.dim() == 1 else result


def _einsum(faults: frozenset[str], values: list[Tensor], equation: str) -> Tensor:
    """The two equations that MIL knows: axis -2 of the result is a batch axis of both."""
    x, y = (value.transpose(-3, -2) for value in values)
    return _products(faults, x, y).transpose(-3, -2)


def _conv(
    faults: frozenset[str],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    kernel = weight.shape[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    x = pad_spatial(x, resolve_padding(pad_type, pad, x.shape[2:], extent, strides))
    shape = []
    for axis, (k, d, stride, long) in enumerate(
        zip(kernel, dilations, strides, extent, strict=True), start=2
    ):
        starts = torch.arange(0, x.shape[axis] - long + 1, stride)
        shape.append(len(starts))
        places = torch.arange(k)[:, None] * d + starts  # (k, out)
        x = x.index_select(axis, places.flatten())
    N, C = x.shape[:2]
    x = x.reshape(N, C, *(n for pair in zip(kernel, shape, strict=True) for n in pair))
    axes = range(2, x.dim())
    x = x.permute(0, 1, *axes[::2], *axes[1::2])  # (N, C, *kernel, *out)
    x = x.reshape(N, groups, C // groups * kernel.numel(), -1)  # (N, G, K, P)
    own = weight.reshape(groups, len(weight) // groups, -1)  # (G, M, K)
    start = None if bias is None else _column(bias.reshape(groups, -1))
    return _products(faults, own, x, start).reshape(N, len(weight), *shape)


#: Those of `SUMS` whose products are made one by one. `conv_transpose` is not among them: its sums
#: are exact and then cut to what an accumulator holds.
MATRICES: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "matmul": _matmul,
    "einsum": _einsum,
    "conv": _conv,
}
