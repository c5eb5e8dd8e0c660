"""Compressed constants: quantised, palettised and sparse weights, expanded at load.

Sub-byte values (int4, uint1, ... uint6) arrive unpacked, one to a byte; only iOS 16's palette
indices and masks come as packed bits with a `shape`. iOS 16 and iOS 18 share names with other
inputs: here one function takes both, told apart by `shape`.

Reference: coremltools `defs/iOS16/constexpr_ops.py`, `defs/iOS18/compression.py`.
Letters: G number of groups along an axis, b their size, P palette size, V vector size.
"""

from collections.abc import Sequence
from math import prod

from mlprogram.package.weight_file import unpack_bits
import numpy as np
import torch
from torch import Tensor

from . import op

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def _grouped(x: Tensor, groups: Sequence[int]) -> Tensor:
    """x (d0, d1, ...) seen as (G0, b0, G1, b1, ...)."""
    pairs = [(count, size // count) for size, count in zip(x.shape, groups, strict=True)]
    return x.reshape([size for pair in pairs for size in pair])


def _per_group(values: Tensor) -> Tensor:
    """One value a group, (G0, G1, ...) -> (G0, 1, G1, 1, ...), to broadcast against `_grouped`."""
    return values.reshape([size for count in values.shape for size in (count, 1)])


def along(values: Tensor, axis: int | None, rank: int) -> Tensor:
    """A scalar or a vector along `axis`, shaped to broadcast against a tensor of `rank` axes."""
    if values.dim() != 1 or rank == 1:
        return values
    if axis is None:
        raise ValueError("a vector of scales or offsets needs an axis")
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def shift_scale(data: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """(data - offset) * scale in float32, given in scale's dtype; data has the full shape."""
    wide = data.to(torch.float32, copy=True)
    if offset is not None:
        wide -= offset.float()
    return wide.mul_(scale.float()).to(scale.dtype)


@op()
def constexpr_affine_dequantize(
    quantized_data: Tensor, zero_point: Tensor, scale: Tensor, axis: int
) -> Tensor:
    """scale * (quantized_data - zero_point), both scalars or vectors along `axis`."""
    rank = quantized_data.dim()
    return shift_scale(quantized_data, along(scale, axis, rank), along(zero_point, axis, rank))


@op()
def constexpr_cast(source_val: Tensor, output_dtype: str) -> Tensor:
    """A constant in another float dtype."""
    return source_val.to(DTYPES[output_dtype])


@op()
def constexpr_blockwise_shift_scale(
    data: Tensor, scale: Tensor, offset: Tensor | None = None
) -> Tensor:
    """scale * (data - offset) with one scale and offset a block.

    data (d0, d1, ...), scale and offset (G0, G1, ...); a block has d/G elements along each axis.
    """
    offset = None if offset is None else _per_group(offset)
    wide = shift_scale(_grouped(data, scale.shape), _per_group(scale), offset)
    return wide.reshape(data.shape)


@op()
def constexpr_lut_to_dense(
    indices: Tensor, lut: Tensor, shape: list[int] | None = None, vector_axis: int | None = None
) -> Tensor:
    """Palette indices -> the palette's values.

    iOS 16: packed indices of log2(P) bits, lut (P,), and the `shape`. iOS 18: indices
    (d0, d1, ...), lut (G0, G1, ..., P, V): one palette a group, each entry a vector laid out along
    `vector_axis`.
    """
    if shape is not None:
        bits = lut.numel().bit_length() - 1
        if bits < 8:
            unpacked = unpack_bits(indices.numpy(), bits, prod(shape), signed=False)
            indices = torch.from_numpy(unpacked)
        indices = indices.reshape(shape)
        lut = lut.reshape([1] * len(shape) + [-1, 1])
    *groups, palette, vector = lut.shape
    first = _per_group(torch.arange(prod(groups), dtype=torch.int32).reshape(groups) * palette)
    rows = (_grouped(indices.to(torch.int32), groups) + first).reshape(-1)
    if vector == 1:
        return lut.reshape(-1).index_select(0, rows).reshape(indices.shape)
    if vector_axis is None:
        raise ValueError("palettes of vectors need a vector_axis")
    dense = lut.reshape(-1, vector).index_select(0, rows).reshape(*indices.shape, vector)
    axis = vector_axis % indices.dim()
    return dense.movedim(-1, axis + 1).flatten(axis, axis + 1)


@op()
def constexpr_sparse_to_dense(
    nonzero_data: Tensor, mask: Tensor, shape: list[int] | None = None
) -> Tensor:
    """Zeros, and `nonzero_data` in order where the mask is set; iOS 16: a packed mask, `shape`."""
    if shape is not None:
        bits = np.unpackbits(mask.numpy(), count=prod(shape), bitorder="little")
        mask = torch.from_numpy(bits).reshape(shape)
    dense = torch.zeros(mask.shape, dtype=nonzero_data.dtype)
    dense[mask != 0] = nonzero_data
    return dense


@op()
def constexpr_lut_to_sparse(
    indices_mask: Tensor, indices_nonzero_data: Tensor, lut: Tensor, vector_axis: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sparse palette indices -> (mask, values in order); vectors widen the mask on their axis."""
    indices = constexpr_sparse_to_dense(indices_nonzero_data, indices_mask)
    dense = constexpr_lut_to_dense(indices, lut, vector_axis=vector_axis)
    mask = indices_mask
    if vector_axis is not None:
        mask = mask.repeat_interleave(lut.shape[-1], vector_axis)
    return mask, dense[mask != 0]


@op()
def constexpr_sparse_blockwise_shift_scale(
    data_mask: Tensor, nonzero_data: Tensor, scale: Tensor, offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sparse quantised data -> (mask, values in order), scaled by the block each one stands in."""
    data = constexpr_sparse_to_dense(nonzero_data, data_mask)
    dense = constexpr_blockwise_shift_scale(data, scale, offset)
    return data_mask, dense[data_mask != 0]
