"""Compressed weights, carried as they are stored: the `constexpr_*` ops.

Core AI has the two ops that ML Programs have since iOS 18, scales by block and palettes by group;
iOS 16's forms are written as these. What it lacks is a palette of 3 or 6 bits, which takes 4 or 8
with the same entries, and a mask with zeros, which is refused.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from ane_book.coreai.values import constant, dtype_of
from mlprogram.package.values import Constant
from mlprogram.package.weight_file import unpack_bits
import numpy as np

__all__ = ["WEIGHTS"]


def _stored(array: np.ndarray, dtype: str) -> Any:
    return constant(array, dtype_of(dtype))


def _along(array: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A scalar or a vector along `axis`, with as many axes as the data."""
    shape = [1] * rank
    if array.size > 1:
        shape[axis] = array.size
    return array.reshape(shape)


def _scaled(data: Constant, scale: np.ndarray, offset: np.ndarray, kind: str) -> Any:
    from coreai import authoring

    stored = data.type.dtype
    return authoring.blockwise_shift_scale(
        _stored(data.array(), stored),
        _stored(scale, kind),
        _stored(offset, stored),
        _stored(np.zeros_like(scale), kind),
    )


def by_block(data: Constant, scale: Constant, offset: Constant | None = None) -> Any:
    """constexpr_blockwise_shift_scale: (data - offset) * scale, one of each a block."""
    scales = scale.array()
    zeros = np.zeros(scales.shape, data.array().dtype)
    return _scaled(data, scales, zeros if offset is None else offset.array(), scale.type.dtype)


def affine(quantized_data: Constant, zero_point: Constant, scale: Constant, axis: Constant) -> Any:
    """constexpr_affine_dequantize of iOS 16: scalars or vectors along one axis."""
    rank, along = quantized_data.array().ndim, axis.value
    scales = _along(scale.array(), along, rank)
    offsets = np.broadcast_to(_along(zero_point.array(), along, rank), scales.shape)
    return _scaled(quantized_data, scales, offsets, scale.type.dtype)


def palette(
    indices: Constant,
    lut: Constant,
    shape: Constant | None = None,
    vector_axis: Constant | None = None,
) -> Any:
    """constexpr_lut_to_dense, of iOS 18 with one palette a group, or of iOS 16 with packed bits."""
    from coreai import authoring

    table = lut.array()
    if shape is not None:
        sizes = shape.array().tolist()
        picked, bits = indices.array(), (len(table) - 1).bit_length()
        if bits < 8:
            picked = unpack_bits(picked, bits, prod(sizes), signed=False)
        picked = picked.reshape(sizes)
        table = table.reshape(*[1] * len(sizes), -1, 1)
    else:
        picked = indices.array()
        bits = int(indices.type.dtype.removeprefix("uint"))
    width = next(width for width in (2, 4, 8) if width >= bits)
    room = [(0, 0)] * table.ndim
    room[-2] = (0, 2**width - table.shape[-2])
    return authoring.lut_to_dense(
        _stored(picked, f"uint{width}"),
        _stored(np.pad(table, room), lut.type.dtype),
        np.int16(vector_axis.value if vector_axis is not None else 0),
    )


def cast(source_val: Constant, output_dtype: Constant) -> Any:
    """constexpr_cast: a constant in another float dtype."""
    kind = output_dtype.value
    return _stored(source_val.array().astype({"fp16": np.float16, "fp32": np.float32}[kind]), kind)


WEIGHTS: dict[str, Callable[..., Any]] = {
    "constexpr_blockwise_shift_scale": by_block,
    "constexpr_affine_dequantize": affine,
    "constexpr_lut_to_dense": palette,
    "constexpr_cast": cast,
}
