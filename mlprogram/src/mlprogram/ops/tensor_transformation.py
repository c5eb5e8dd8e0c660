"""Ops that rearrange a tensor: reshape, transpose, slices, and moves of depth, batch and space.

What torch can give as a view is a view (reshape, transpose, squeeze, expand_dims, slices); every
other op here returns memory of its own, which `analysis/aliases.py` relies on.

Reference: coremltools `defs/iOS15..iOS18/tensor_transformation.py`.
Letters: N batch, C channels, H height, W width, b block size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op


@op()
def reshape(x: Tensor, shape: list[int]) -> Tensor:
    """x in another shape of as many elements; -1 is what remains.

    A 0 takes the size of x's axis that is as far from the right end, or 1 where x has none. iOS 15
    allows 0 only when both ranks are equal, where iOS 17's rule gives the same.
    """
    if 0 in shape:
        missing = len(shape) - x.dim()
        shape = [
            size or (x.shape[axis - missing] if axis >= missing else 1)
            for axis, size in enumerate(shape)
        ]
    return x.reshape(shape)


@op()
def reshape_like(
    x: Tensor,
    ref_tensors: list[Tensor] | Tensor,
    begins: Any,
    ends: Any,
    end_masks: Any,
) -> Tensor:
    """x in the shape that the chosen axes of the reference tensors make, one after the other.

    Of one reference everything else is a scalar, of several a list.
    """
    if isinstance(ref_tensors, Tensor):  # one reference
        ref_tensors, begins, ends, end_masks = [ref_tensors], [begins], [ends], [end_masks]
    shape: list[int] = []
    for ref, begin, end, to_the_end in zip(ref_tensors, begins, ends, end_masks, strict=True):
        shape += ref.shape[begin:] if to_the_end else ref.shape[begin:end]
    return x.reshape(shape)


@op()
def expand_dims(x: Tensor, axes: list[int]) -> Tensor:
    """x with axes of size 1 added; `axes` are positions in the result."""
    if len(axes) == 1:
        return x.unsqueeze(axes[0])
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@op()
def squeeze(x: Tensor, axes: list[int] | None = None) -> Tensor:
    """x without the given axes (default: all) whose size is 1; others stay, as in torch."""
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@op()
def transpose(x: Tensor, perm: list[int]) -> Tensor:
    """x with its axes in the order `perm`."""
    return x.permute(perm)


@op()
def reverse(x: Tensor, axes: list[int] | None = None) -> Tensor:
    """x reversed along the axes (default: all)."""
    axes = list(range(x.dim())) if axes is None else axes
    if x.dtype == torch.uint16:  # which torch does not flip
        return x.view(torch.int16).flip(axes).view(torch.uint16)
    return x.flip(axes)


@op()
def reverse_sequence(x: Tensor, lengths: Tensor, seq_axis: int = 0, batch_axis: int = 0) -> Tensor:
    """The first lengths[b] elements along `seq_axis` reversed for each b of `batch_axis`."""
    moved = x.movedim((batch_axis, seq_axis), (0, 1))  # -> (B, T, ...)
    position = torch.arange(moved.shape[1], device=x.device)
    lengths = lengths.long().unsqueeze(1)
    order = torch.where(position < lengths, lengths - 1 - position, position)  # (B, T)
    batch = torch.arange(moved.shape[0], device=x.device).unsqueeze(1)
    return moved[batch, order].movedim((0, 1), (batch_axis, seq_axis))


# --- slices -----------------------------------------------------------------------------------


def _view(
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    stride: Sequence[int] | None = None,
    begin_mask: Sequence[bool] | None = None,
    end_mask: Sequence[bool] | None = None,
    squeeze_mask: Sequence[bool] | None = None,
) -> tuple[Tensor, list[int]]:
    """The view of x that a slice names, and its axes that a negative stride walks backwards."""
    backwards: list[int] = []
    shape = x.shape
    # from the last axis on, so that an axis taken out does not move those still to come
    for axis in range(len(begin) - 1, -1, -1):
        first = None if begin_mask and begin_mask[axis] else begin[axis]
        if squeeze_mask and squeeze_mask[axis]:
            x = x.select(axis, first or 0)
            backwards = [a - 1 for a in backwards]
            continue
        last = None if end_mask and end_mask[axis] else end[axis]
        step = stride[axis] if stride else 1
        size = shape[axis]
        if step == 1 and not first and (last is None or last == size):
            continue  # the whole axis, as most are
        places = range(size)[first:last:step] or range(0)
        if step < 0:
            backwards.append(axis)
            places = places[::-1]
        if places.step > 1:
            x = x[(slice(None),) * axis + (slice(places.start, places.stop, places.step),)]
        elif len(places) != size:
            x = x.narrow(axis, places.start, len(places))
    return x, backwards


def slice_of(
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    stride: Sequence[int] | None = None,
    begin_mask: Sequence[bool] | None = None,
    end_mask: Sequence[bool] | None = None,
    squeeze_mask: Sequence[bool] | None = None,
) -> Tensor:
    """The part of x that MIL's slice arguments name: a view, a copy where a stride is negative.

    As numpy's x[begin:end:stride]; a begin_mask or end_mask opens that side, a squeeze_mask takes
    the element at `begin` and drops the axis.
    """
    x, backwards = _view(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    return x.flip(backwards) if backwards else x


def write_slice(
    x: Tensor, update: Tensor, begin: Sequence[int], end: Sequence[int], *more: Any, **named: Any
) -> Tensor:
    """Write `update` into the slice of x that `slice_of` gives of these arguments, in place, and
    return the view of x that was written.

    Raises ValueError where it does not have the slice's shape, which MIL asks for: a slice ends
    where x does, so that nothing beyond is written and nothing is dropped.
    """
    view, backwards = _view(x, begin, end, *more, **named)
    if view.shape != update.shape:
        raise ValueError(
            f"an update of shape {(*update.shape,)} for a slice of shape {(*view.shape,)}: "
            f"{[*begin]} to {[*end]} of {(*x.shape,)}"
        )
    return view.copy_(update.flip(backwards) if backwards else update)


op("slice_by_index")(slice_of)


@op()
def slice_update(
    x: Tensor,
    update: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    stride: Sequence[int] | None = None,
    begin_mask: Sequence[bool] | None = None,
    end_mask: Sequence[bool] | None = None,
    squeeze_mask: Sequence[bool] | None = None,
) -> Tensor:
    """A copy of x in which the slice that `slice_by_index` would give is `update`."""
    x = x.clone(memory_format=torch.contiguous_format)
    write_slice(x, update, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    return x


@op()
def slice_by_size(x: Tensor, begin: list[int], size: list[int]) -> Tensor:
    """`size` elements from `begin` on along each axis; -1 is all that follow."""
    for axis, (start, length) in enumerate(zip(begin, size, strict=True)):
        whole = x.shape[axis]
        start = start + whole if start < 0 else start
        length = whole - start if length == -1 else length
        if length != whole:
            x = x.narrow(axis, start, length)
    return x


@op()
def sliding_windows(x: Tensor, axis: int, size: int, stride: int = 1) -> Tensor:
    """All windows of `size` along an axis: (..., D, ...) -> (..., windows, size, ...)."""
    windows = x.unfold(axis, size, stride)  # the window is the last axis
    return _own(windows.movedim(-1, axis % x.dim() + 1))


# --- depth, batch and space -------------------------------------------------------------------


def _own(x: Tensor) -> Tensor:
    """A contiguous copy, also where torch would answer with a view."""
    return x.clone(memory_format=torch.contiguous_format)


@op()
def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    """(N, b*b*C, H, W) -> (N, C, H*b, W*b); the place in the block comes first in the channels."""
    n, c, h, w = x.shape
    b = block_size
    x = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)  # -> (N, C, H, b, W, b)
    return _own(x).reshape(n, c // (b * b), h * b, w * b)


@op()
def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    """(N, C, H*b, W*b) -> (N, b*b*C, H, W), the inverse of depth_to_space."""
    n, c, h, w = x.shape
    b = block_size
    x = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)  # -> (N, b, b, C, H, W)
    return _own(x).reshape(n, c * b * b, h // b, w // b)


@op()
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """(N, C*f*f, H, W) -> (N, C, H*f, W*f); the place in the block comes last in the channels."""
    return _own(F.pixel_shuffle(x, upscale_factor))


@op()
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """(N, C, H*f, W*f) -> (N, C*f*f, H, W), the inverse of pixel_shuffle."""
    return _own(F.pixel_unshuffle(x, downscale_factor))


@op()
def space_to_batch(x: Tensor, block_shape: list[int], paddings: list[list[int]]) -> Tensor:
    """(N, C, H, W) padded -> (bh*bw*N, C, H/bh, W/bw), as tf.space_to_batch."""
    (top, bottom), (left, right) = paddings
    x = F.pad(x, (left, right, top, bottom))
    n, c, h, w = x.shape
    bh, bw = block_shape
    x = x.reshape(n, c, h // bh, bh, w // bw, bw).permute(3, 5, 0, 1, 2, 4)
    return _own(x).reshape(bh * bw * n, c, h // bh, w // bw)


@op()
def batch_to_space(x: Tensor, block_shape: list[int], crops: list[list[int]]) -> Tensor:
    """(bh*bw*N, C, H, W) -> (N, C, H*bh, W*bw) cropped, as tf.batch_to_space."""
    n, c, h, w = x.shape
    bh, bw = block_shape
    n //= bh * bw
    x = x.reshape(bh, bw, n, c, h, w).permute(2, 3, 4, 0, 5, 1)  # -> (N, C, H, bh, W, bw)
    x = x.reshape(n, c, h * bh, w * bw)
    (top, bottom), (left, right) = crops
    return _own(x[:, :, top : h * bh - bottom, left : w * bw - right])
