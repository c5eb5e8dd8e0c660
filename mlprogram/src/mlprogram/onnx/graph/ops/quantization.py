"""Quantised operators, computed in real numbers: fp32 is exact for integers up to 2^24.

Dequantising a constant is folded, since coremltools' compression then makes a smaller package than
the stored form would.
"""

import numpy as np

from . import Constant, Unsayable, operator
from ._common import Tensor, as_float, as_int, mb, one_axis, rank, reshaped
from .math import matmul
from .nn import conv

RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
RANGES |= {"uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1)}


def _spread(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Broadcast scales or zero points (one, one per element of an axis, or one per block) to x."""
    if (rank(values) == 1 and int(values.shape[0]) > 1) or (rank(values) == 1 and rank(x) > 1):
        if int(values.shape[0]) == 1:
            return reshaped(values, [1] * rank(x))
        return reshaped(values, [-1 if a == one_axis(axis, rank(x)) else 1 for a in range(rank(x))])
    if not block_size or not rank(values):
        return values
    axis = one_axis(axis, rank(x))
    if isinstance(values, np.ndarray):
        return values.take(np.arange(int(x.shape[axis])) // block_size, axis)
    raise Unsayable("blocks whose scales are not known")


@operator("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis=1, block_size=0,
    output_dtype=0, precision=0, saturate=1, dtype: np.dtype,
) -> Tensor:  # fmt: skip
    name = "uint8" if dtype is None else dtype.name
    if name not in RANGES:
        raise Unsayable(f"numbers of type {name}")
    scaled = mb.real_div(x=as_float(x), y=_spread(scale, x, axis, block_size))
    whole = mb.round(x=scaled)
    if zero_point is not None:
        whole = mb.add(x=whole, y=_spread(as_float(zero_point), x, axis, block_size))
    low, high = RANGES[name]
    return as_int(mb.clip(x=whole, alpha=np.float32(low), beta=np.float32(high)))


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis=1, block_size=0,
    output_dtype=0,
) -> Tensor:  # fmt: skip
    real = as_float(x)
    if zero_point is not None:
        real = mb.sub(x=real, y=_spread(as_float(zero_point), x, axis, block_size))
    return mb.mul(x=real, y=_spread(scale, x, axis, block_size))


def _centred(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """x minus its zero point, which is one number or one per element of an axis."""
    if zero_point is None:
        return as_float(x)
    real, low = as_float(x), _spread(as_float(zero_point), x, axis, 0)
    known = isinstance(real, np.ndarray) and isinstance(low, np.ndarray)
    return real - low if known else mb.sub(x=real, y=low)


@operator("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    product = matmul(_centred(a, a_zero_point, -2), _centred(b, b_zero_point, -1))
    return as_int(mb.round(x=product))


@operator("ConvInteger")
def conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None,
    **attributes,
) -> Tensor:  # fmt: skip
    made = conv(_centred(x, x_zero_point, 1), _centred(w, w_zero_point, 0), **attributes)
    return as_int(mb.round(x=made))


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero_point: Tensor, b: Tensor, b_scale: Tensor,
    b_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, *, dtype: np.dtype,
) -> Tensor:  # fmt: skip
    left = dequantize_linear(a, a_scale, a_zero_point, axis=-2)
    right = dequantize_linear(b, b_scale, b_zero_point, axis=-1)
    return quantize_linear(matmul(left, right), y_scale, y_zero_point, dtype=dtype)


@operator("QLinearConv")
def qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor, w: Constant, w_scale: Constant,
    w_zero_point: Constant, y_scale: Tensor, y_zero_point: Tensor, bias: Constant | None = None, *,
    dtype: np.dtype, **attributes,
) -> Tensor:  # fmt: skip
    """Convolve with dequantised weights; the bias has the scale x_scale * w_scale."""
    by_row = [-1, *[1] * (w.ndim - 1)]
    weight = (w.astype(np.float32) - w_zero_point.astype(np.float32).reshape(by_row)) * np.reshape(
        w_scale, by_row
    )
    made = conv(dequantize_linear(x, x_scale, x_zero_point), weight, None, **attributes)
    if bias is not None:
        steps = np.asarray(x_scale) * np.asarray(w_scale)
        made = mb.add(x=made, y=(bias * steps).astype(np.float32).reshape(by_row[:-1]))
    return quantize_linear(made, y_scale, y_zero_point, dtype=dtype)
