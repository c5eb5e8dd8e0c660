"""Compiled ops beside the products of `native.Weight`, for shapes that are known at load.

Each function prepares an op for operands of given shapes, all float16 or all float32, and returns a
function that runs it on contiguous tensors; `fixed` makes sure that they are. Half precision is
summed in float32, and rounded where the ops that a kernel replaces round. The C is in `c/`.
"""

from collections.abc import Callable
import ctypes
from enum import IntEnum
from math import prod

from mlprogram.kernels.native import TYPES, Numbers, kernel
from mlprogram.kernels.threads import threads
import torch
from torch import Tensor

FEW_ROWS = 16  # of a product whose vectors go along what is summed


class Rounding(IntEnum):
    """Where half precision rounds in attention: `AS_ONE`, .. of attention.c."""

    AS_ONE, AS_OPS, SPELLED_OUT = range(3)


class Activation(IntEnum):
    """Functions of one value: `SIGMOID`, .. of small.c."""

    SIGMOID, SILU, GELU_TANH, GELU_SIGMOID, GELU, TANH, EXP, COS, SIN = range(9)


class _Attention(ctypes.Structure):
    """`Attention` of attention.c."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("slots", ctypes.c_int64 * 2),
        ("mask_rows", ctypes.c_int64),
        ("is_half", ctypes.c_int32),
        ("rounding", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


def fixed(
    plain: Callable | None,
    run: Callable,
    dtype: torch.dtype,
    *shapes: tuple,
    contiguous: bool = True,
) -> Callable:
    """`run` for operands of these shapes and this dtype, which are made contiguous unless said
    otherwise; `plain` for any others.

    A size that is None may be any but 0. Without a plain form others raise ValueError: compiled
    code reads as far as the shapes say.
    """
    is_open = any(None in shape for shape in shapes)

    def call(*operands: Tensor) -> Tensor:
        for x, shape in zip(operands, shapes, strict=True):
            if x.dtype != dtype or (x.shape != shape and not (is_open and _fits(x, shape))):
                if plain is None:
                    raise ValueError(f"{x.dtype} {[*x.shape]} where the program says {[*shape]}")
                return plain(*operands)
        return run(*[x.contiguous() for x in operands] if contiguous else operands)

    return call


def _fits(x: Tensor, shape: tuple[int | None, ...]) -> bool:
    sizes = zip(x.shape, shape, strict=False)
    return x.dim() == len(shape) and all(n == m or (m is None and n) for n, m in sizes)


def softmax(shape: tuple[int, ...], dtype: torch.dtype, axis: int) -> Callable[[Tensor], Tensor]:
    """softmax over an axis, counted from the first."""
    function, half = kernel("softmax"), dtype == torch.float16
    outer, size, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        function(x, y, outer, size, inner, half)
        return y

    return run


def layer_norm(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axes: range,
    gamma: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
) -> Callable[[Tensor], Tensor]:
    """Layer norm over neighbouring axes; gamma and beta have their sizes."""
    function, half = kernel("layer_norm"), dtype == torch.float16
    factors = [None if t is None else t.float().contiguous() for t in (gamma, beta)]
    outer, inner = prod(shape[: axes.start]), prod(shape[axes.stop :])
    size = prod(shape[axes.start : axes.stop])

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        function(x, y, factors[0], factors[1], outer, size, inner, epsilon, half)
        return y

    return run


def rms_norm(
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    weight: Tensor | None,
    epsilon: float,
    rounding: Rounding = Rounding.AS_OPS,
    added: float = 0.0,
) -> Callable[[Tensor], Tensor]:
    """x / sqrt(mean of x^2 along an axis + added + epsilon), times a weight of that axis' size.

    sizes: of x from that axis on. added: what an op of its own adds to the mean, in half precision,
    before epsilon.
    """
    function, half = kernel("rms_norm"), dtype == torch.float16
    factors = None if weight is None else weight.float().contiguous()
    size, inner = sizes[0], prod(sizes[1:])

    def run(x: Tensor) -> Tensor:
        y = torch.empty(x.shape, dtype=dtype)
        outer = x.numel() // (size * inner)
        function(
            x, y, factors, outer, size, inner, added, epsilon, half, rounding, threads()
        )  # fmt: skip
        return y

    return run


def activation(how: Activation) -> Callable[[Tensor], Tensor]:
    """A function of each value of a contiguous tensor."""
    function = kernel("activation")

    def run(x: Tensor) -> Tensor:
        y, half = torch.empty(x.shape, dtype=x.dtype), x.dtype == torch.float16
        function(x, y, x.numel(), how, half, threads())
        return y

    return run


def gather(axis: int, wraps: bool) -> Callable[[Tensor, Tensor], Tensor | None]:
    """Slices of x along an axis, by contiguous indices of any shape; None if some lie outside.

    wraps: negative ones count from the end.
    """
    function = kernel("gather")

    def run(x: Tensor, indices: Tensor) -> Tensor | None:
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        y = torch.empty((*before, *indices.shape, *after), dtype=x.dtype)
        outside = function(
            x, indices, y, prod(before), x.shape[axis], prod(after) * x.itemsize,
            indices.numel(), TYPES[indices.dtype], wraps,
        )  # fmt: skip
        return None if outside else y

    return run


def gated(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """silu(gate) * x, of gate and x of one shape."""
    function, half = kernel("gated"), dtype == torch.float16

    def run(gate: Tensor, x: Tensor) -> Tensor:
        y = torch.empty(gate.shape, dtype=dtype)
        function(gate, x, y, gate.numel(), half, threads())
        return y

    return run


class Turn(IntEnum):
    """How a half takes the other's place in rotary embedding: `SWAPPED`, .. of small.c."""

    SWAPPED, NEGATED, HALVED = range(3)


def rotary(
    axis: int, turn: Turn, dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """x cos + [b, a] sin, of x whose halves along `axis`, below 0, are a and b; or [-b, a].

    The tables have the shape of x's last axes, from that one on or more; HALVED ones are for each
    half, which is [a cos - b sin, b cos + a sin].
    """
    function, half = kernel("rotary"), dtype == torch.float16

    def run(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = torch.empty(x.shape, dtype=dtype)
        length = prod(x.shape[axis:]) // 2
        function(x, cos, sin, y, x.numel(), cos.numel(), length, turn, half, threads())
        return y

    return run


def attention(
    shape: tuple[int, int, int],
    slots: tuple[int, ...],
    mask_rows: int,
    dtype: torch.dtype,
    rounding: Rounding = Rounding.AS_OPS,
    scale: float = 1.0,
) -> Callable[..., Tensor]:
    """softmax(scale q K^T + mask) V of q, the mask or None, the keys and the values of each part.

    shape: of q and of the result, (B, M, D). slots: of the one or two parts, whose keys and values
    are (B, N, D). mask_rows: of the mask (mask_rows, N), which take turns over the M rows.
    """
    function, half = kernel("attention"), dtype == torch.float16
    counts = (ctypes.c_int64 * 2)(*slots)
    record = _Attention(*shape, counts, mask_rows, half, rounding, scale)
    numbers, parts = Numbers(record), len(slots)
    absent = (None,) * (2 - parts)

    def run(q: Tensor, mask: Tensor | None, *cache: Tensor) -> Tensor:
        out = torch.empty(shape, dtype=dtype)
        keys, values = cache[:parts] + absent, cache[parts:] + absent
        function(numbers, q, keys, values, mask, out, threads())
        return out

    return run


def batch_matmul(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], transpose_y: bool, dtype: torch.dtype
) -> Callable[[Tensor, Tensor], Tensor]:
    """x (*B, M, K) times y, (*B, N, K) if transpose_y, else (*B, K, N), for few rows M."""
    function, half = kernel("batch_matmul"), dtype == torch.float16
    *batch, rows, depth = x_shape
    columns = y_shape[-2] if transpose_y else y_shape[-1]
    count = prod(batch)

    def run(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty((*batch, rows, columns), dtype=dtype)
        function(x, y, out, count, rows, columns, depth, transpose_y, half)
        return out

    return run


def einsum(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], turned: bool, dtype: torch.dtype
) -> Callable[[Tensor, Tensor], Tensor]:
    """x (*B, C, H, W) times y (*B, W, H, U) -> (*B, C, H, U), the axes B and H being batch.

    turned: x is read with C as its innermost axis.
    """
    if y_shape[-1] > FEW_ROWS:
        return _einsum_of_many(x_shape, y_shape, dtype)
    *batch, rows, heads, depth = x_shape
    columns = y_shape[-1]
    right = (*batch, heads, depth, rows) if turned else (*batch, heads, rows, depth)
    product = batch_matmul((*batch, heads, columns, depth), right, not turned, dtype)
    order = (*range(len(batch)), -2, *((-1, -3) if turned else (-3, -1)))

    def run(x: Tensor, y: Tensor) -> Tensor:
        left = y.permute(*range(len(batch)), -2, -1, -3).contiguous()
        out = product(left, x.permute(order).contiguous())  # (*B, H, U, C)
        return out.permute(*range(len(batch)), -1, -3, -2).contiguous()

    return run


def _einsum_of_many(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], dtype: torch.dtype
) -> Callable[[Tensor, Tensor], Tensor]:
    """`einsum` without a batch, of many columns U."""
    function, half = kernel("einsum"), dtype == torch.float16
    rows, heads, depth = x_shape[-3:]
    columns = y_shape[-1]

    def run(x: Tensor, y: Tensor) -> Tensor:
        steps = _steps(x)
        if 1 not in (steps[-1], steps[-3]):
            x = x.contiguous()
            steps = _steps(x)
        y = y if y.stride(-1) == 1 else y.contiguous()
        out = torch.empty((*x_shape[:-1], columns), dtype=dtype)
        function(
            x, y, out, heads, rows, depth, columns, *steps[-3:], *y.stride()[-3:-1], half,
            threads(),
        )  # fmt: skip
        return out

    return run


def _steps(x: Tensor) -> list[int]:
    """Strides, and 1 for an axis of one, where torch has any."""
    return [step if n > 1 else 1 for n, step in zip(x.shape, x.stride(), strict=True)]
