"""Compiled ops beside the products of `native.Weight`, for shapes that are known at load.

Each function prepares an op for operands of given shapes, all float16 or all float32, and returns
what runs it on contiguous tensors; `fixed` sees to it that they are such. Half precision is summed
in float32 and rounded where the ops that a kernel stands for round. The C is in `c/`.
"""

from collections.abc import Callable
import ctypes
from math import prod

from ane_book.mil.kernels.native import kernel
from ane_book.mil.kernels.threads import threads
import torch
from torch import Tensor

__all__ = ["attention", "batch_matmul", "fixed", "gated", "layer_norm", "rms_norm", "softmax"]


class _Attention(ctypes.Structure):
    """`Attention` of attention.c."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("slots", ctypes.c_int64 * 2),
        ("mask_rows", ctypes.c_int64),
        ("is_half", ctypes.c_int32),
    )


def fixed(plain: Callable | None, run: Callable, dtype: torch.dtype, *shapes: tuple) -> Callable:
    """`run` for contiguous operands of these shapes and this dtype, `plain` for any others.

    Without a plain form others raise ValueError: compiled code reads as far as the shapes say.
    """

    def call(*operands: Tensor) -> Tensor:
        for x, shape in zip(operands, shapes, strict=True):
            if x.shape != shape or x.dtype != dtype:
                if plain is None:
                    raise ValueError(f"{x.dtype} {[*x.shape]} where the program says {[*shape]}")
                return plain(*operands)
        return run(*[x.contiguous() for x in operands])

    return call


def softmax(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """softmax over the last axis."""
    function, half = kernel("softmax"), dtype == torch.float16
    rows, size = prod(shape[:-1]), shape[-1]

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        function(x.data_ptr(), y.data_ptr(), rows, size, half)
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
        pointers = [None if t is None else t.data_ptr() for t in factors]
        function(x.data_ptr(), y.data_ptr(), *pointers, outer, size, inner, epsilon, half)
        return y

    return run


def rms_norm(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axis: int,
    weight: Tensor | None,
    epsilon: float,
) -> Callable[[Tensor], Tensor]:
    """x / sqrt(mean of x^2 along `axis` + epsilon), times a weight of that axis' size."""
    function, half = kernel("rms_norm"), dtype == torch.float16
    factors = None if weight is None else weight.float().contiguous()
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), epsilon, half)

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        pointer = None if factors is None else factors.data_ptr()
        function(x.data_ptr(), y.data_ptr(), pointer, *sizes, threads())
        return y

    return run


def gated(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """silu(gate) * x, of gate and x of one shape."""
    function, half, size = kernel("gated"), dtype == torch.float16, prod(shape)

    def run(gate: Tensor, x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        function(gate.data_ptr(), x.data_ptr(), y.data_ptr(), size, half, threads())
        return y

    return run


def attention(
    q_shape: tuple[int, ...], slots: tuple[int, ...], mask_rows: int, dtype: torch.dtype
) -> Callable[..., Tensor]:
    """softmax(q K^T + mask) V of q (*B, M, D), the keys of each part, mask, the values of each.

    slots: of the one or two parts, whose keys and values are (*B, N, D). mask_rows: M, or 1.
    """
    function, half = kernel("attention"), dtype == torch.float16
    *batch, rows, depth = q_shape
    counts = (ctypes.c_int64 * 2)(*slots)
    record = _Attention(prod(batch), rows, depth, counts, mask_rows, half)
    address, parts = ctypes.addressof(record), len(slots)
    Pointers = ctypes.c_void_p * 2

    def run(q: Tensor, mask: Tensor, *cache: Tensor, record: _Attention = record) -> Tensor:
        out = torch.empty(q_shape, dtype=dtype)
        keys = Pointers(*[x.data_ptr() for x in cache[:parts]])
        values = Pointers(*[x.data_ptr() for x in cache[parts:]])
        pointers = (q.data_ptr(), keys, values, mask.data_ptr(), out.data_ptr())
        function(address, *pointers, threads())
        return out

    return run


def batch_matmul(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], transpose_y: bool, dtype: torch.dtype
) -> Callable[[Tensor, Tensor], Tensor]:
    """x (*B, M, K) times y, (*B, N, K) if transpose_y, else (*B, K, N), for few rows M."""
    function, half = kernel("batch_matmul"), dtype == torch.float16
    *batch, rows, depth = x_shape
    columns = y_shape[-2] if transpose_y else y_shape[-1]
    sizes = (prod(batch), rows, columns, depth, transpose_y, half)

    def run(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty((*batch, rows, columns), dtype=dtype)
        function(x.data_ptr(), y.data_ptr(), out.data_ptr(), *sizes)
        return out

    return run
