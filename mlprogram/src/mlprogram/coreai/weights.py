"""Compressed weights, carried as they are stored: the `constexpr_*` ops.

Core AI has the ops that ML Programs have since iOS 18: scales by block, palettes by group, masks of
zeros; iOS 16's forms are written as these. What it lacks is a palette of 3 or 6 bits, which takes 4
or 8 with the same entries. What one of these ops made of constants (values under a mask, entries of
a palette) comes to the next as a value.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from coreai import authoring
from coreai._compiler.dialects.coreai.constant import ConstantOp, create_elements_attr
from coreai._compiler.ir import IntegerType, Location, RankedTensorType
from coreai.authoring import Value
from mlprogram.coreai.values import constant, dtype_of
from mlprogram.package.values import Constant
from mlprogram.package.weight_file import unpack_bits
import numpy as np


def _stored(array: np.ndarray, dtype: str) -> Any:
    return constant(array, dtype_of(dtype))


def _value(stored: Any) -> Any:
    """A constant as a value; what was computed of constants is one."""
    return _stored(stored.array(), stored.type.dtype) if isinstance(stored, Constant) else stored


def _along(array: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A scalar or a vector along `axis`, with as many axes as the data."""
    shape = [1] * rank
    if array.size > 1:
        shape[axis] = array.size
    return array.reshape(shape)


def _scaled(data: Any, scale: np.ndarray, offset: np.ndarray | None, kind: str) -> Any:
    """data: a value of whole numbers; offset: of its dtype, by default zeros."""
    if offset is None:
        offset = np.zeros(scale.shape, np.int8)
    return authoring.blockwise_shift_scale(
        data,
        _stored(scale, kind),
        constant(offset, data.type.dtype),
        _stored(np.zeros_like(scale), kind),
    )


def by_block(data: Any, scale: Constant, offset: Constant | None = None) -> Any:
    """constexpr_blockwise_shift_scale: (data - offset) * scale, one of each a block."""
    shift = None if offset is None else offset.array()
    return _scaled(_value(data), scale.array(), shift, scale.type.dtype)


def affine(quantized_data: Constant, zero_point: Constant, scale: Constant, axis: Constant) -> Any:
    """constexpr_affine_dequantize of iOS 16: scalars or vectors along one axis."""
    rank, along = quantized_data.array().ndim, axis.value
    scales = _along(scale.array(), along, rank)
    offsets = np.broadcast_to(_along(zero_point.array(), along, rank), scales.shape)
    return _scaled(_value(quantized_data), scales, offsets, scale.type.dtype)


def _width(bits: int) -> int:
    return next(width for width in (2, 4, 8) if width >= bits)


def _table(lut: Any, width: int) -> Any:
    """Palettes (*groups, entries, vector) with as many entries as `width` bits tell apart."""
    if not isinstance(lut, Constant):
        if lut.type.shape[-2] == 2**width:
            return lut
        more = [*lut.type.shape[:-2], 2**width - lut.type.shape[-2], lut.type.shape[-1]]
        rest = constant(np.zeros(more, np.float32), lut.type.dtype)
        return authoring.concat(np.int32(len(more) - 2), [lut, rest])
    table = lut.array()
    room = [(0, 0)] * table.ndim
    room[-2] = (0, 2**width - table.shape[-2])
    return _stored(np.pad(table, room), lut.type.dtype)


def _axis(vector_axis: Constant | None) -> Any:
    return constant(np.array(0 if vector_axis is None else vector_axis.value, np.int16))


def palette(
    indices: Constant, lut: Any, shape: Constant | None = None, vector_axis: Constant | None = None
) -> Any:
    """constexpr_lut_to_dense, of iOS 18 with one palette a group, or of iOS 16 with packed bits."""
    picked = indices.array()
    if shape is None:
        width = _width(int(indices.type.dtype.removeprefix("uint")))
        table = _table(lut, width)
    else:
        sizes, entries = shape.array().tolist(), lut.array()
        if (bits := (len(entries) - 1).bit_length()) < 8:
            picked = unpack_bits(picked, bits, prod(sizes), signed=False)
        picked, width = picked.reshape(sizes), _width(bits)
        room = np.pad(entries, (0, 2**width - len(entries)))
        table = _stored(room.reshape(*[1] * len(sizes), -1, 1), lut.type.dtype)
    return authoring.lut_to_dense(_stored(picked, f"uint{width}"), table, _axis(vector_axis))


# --- masks of zeros ---


def _bits(mask: Any, shape: Constant | None) -> Any:
    """A mask as Core AI's whole numbers of one bit, for which its authoring has no name."""
    if not isinstance(mask, Constant):
        return mask
    stored, sizes = mask.array(), mask.array().shape
    if shape is None:
        stored = np.packbits(stored.ravel().astype(bool), bitorder="little")
    else:
        sizes = shape.array().tolist()
    kind = RankedTensorType.get(list(sizes), IntegerType.get_unsigned(1))
    attribute = create_elements_attr(Location.current, kind, stored)
    return Value._from_mlir(ConstantOp(value=attribute).result)


def dense(nonzero_data: Any, mask: Any, shape: Constant | None = None) -> Any:
    """constexpr_sparse_to_dense: zeros, and the values in order where the mask is set."""
    values = nonzero_data
    if isinstance(nonzero_data, Constant):
        kind = nonzero_data.type.dtype.replace("int4", "int8")  # a mask has no 4 bits under it
        values = _stored(nonzero_data.array(), kind)
        values = authoring.build_sparse_with_bitmask(values, _bits(mask, shape))
    is_sparse = "sparse_tensor_encoding" in str(values._to_mlir().type)
    return authoring.sparse_with_bitmask_to_dense(values) if is_sparse else values


def sparse_palette(
    indices_mask: Constant, indices_nonzero_data: Constant, lut: Any,
    vector_axis: Constant | None = None,
) -> list[Any]:  # fmt: skip
    """constexpr_lut_to_sparse: the mask, and values under it, which only `dense` and
    `sparse_by_block` read."""
    mask = _bits(indices_mask, None)
    width = _width(int(indices_nonzero_data.type.dtype.removeprefix("uint")))
    picked = _stored(indices_nonzero_data.array(), f"uint{width}")
    sparse = authoring.build_sparse_with_bitmask(picked, mask)
    table = _table(lut, width)
    return [mask, authoring.lut_to_sparse_with_bitmask(sparse, table, _axis(vector_axis))]


def sparse_by_block(
    data_mask: Any, nonzero_data: Any, scale: Constant, offset: Constant | None = None
) -> list[Any]:
    """constexpr_sparse_blockwise_shift_scale without offsets: Core AI scales what is dense, and
    only then does a zero stay one."""
    if offset is not None and offset.array().any():
        raise ValueError("offsets under a mask of zeros")
    mask = _bits(data_mask, None)
    return [mask, by_block(dense(nonzero_data, mask), scale)]


def cast(source_val: Constant, output_dtype: Constant) -> Any:
    """constexpr_cast: a constant in another float dtype."""
    kind = output_dtype.value
    return _stored(source_val.array().astype({"fp16": np.float16, "fp32": np.float32}[kind]), kind)


WEIGHTS: dict[str, Callable[..., Any]] = {
    "constexpr_blockwise_shift_scale": by_block,
    "constexpr_affine_dequantize": affine,
    "constexpr_lut_to_dense": palette,
    "constexpr_cast": cast,
    "constexpr_sparse_to_dense": dense,
    "constexpr_lut_to_sparse": sparse_palette,
    "constexpr_sparse_blockwise_shift_scale": sparse_by_block,
}
