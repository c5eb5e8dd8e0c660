"""Ops that move and cut."""

from typing import Any

from coreai import authoring as ai
import numpy as np

from . import COREAI_OPS, op
from .common import constant, counts, ints, like, reshaped, shape_of
from .indexing import take


def _by_declared_shape(x: Any, *, _out: list, **_ignored: Any) -> Any:
    return reshaped(x, list(_out[0].shape))


COREAI_OPS |= dict.fromkeys(
    ["reshape", "expand_dims", "squeeze", "flatten2d", "reshape_like"], _by_declared_shape
)


@op()
def transpose(x: Any, perm: list[int]) -> Any:
    rank = len(shape_of(x))
    return ai.transpose(x, counts(*(axis % rank for axis in perm)))


@op()
def concat(values: list[Any], axis: int, interleave: bool = False) -> Any:
    values = [reshaped(v, shape_of(v) or [1]) for v in values]  # MIL joins scalars too
    rank = len(shape_of(values[0]))
    if interleave:
        axis %= rank
        stacked = stack(values, axis + 1)
        shape = shape_of(values[0])
        return reshaped(stacked, [*shape[:axis], -1, *shape[axis + 1 :]])
    return ai.concat(np.int32(axis % rank), values)


@op()
def stack(values: list[Any], axis: int) -> Any:
    shape = shape_of(values[0])
    axis %= len(shape) + 1
    wider = [reshaped(value, [*shape[:axis], 1, *shape[axis:]]) for value in values]
    return ai.concat(np.int32(axis), wider)


@op()
def split(
    x: Any, axis: int, num_splits: int | None = None, split_sizes: list[int] | None = None
) -> Any:
    axis %= len(shape_of(x))
    if split_sizes is None:
        split_sizes = [shape_of(x)[axis] // (num_splits or 1)] * (num_splits or 1)
    return list(ai.split(x, counts(*split_sizes), np.int32(axis)))


@op()
def tile(x: Any, reps: list[int]) -> Any:
    return ai.tile(x, np.array(reps, np.uint32))


@op()
def reverse(x: Any, axes: list[int] | None = None) -> Any:
    rank = len(shape_of(x))
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    return ai.reverse(x, ints(*axes))


@op()
def pad(x: Any, pad: list[int], mode: str = "constant", constant_val: float = 0.0) -> Any:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "replicate",
             "edge": "replicate", "symmetric": "symmetric"}  # fmt: skip
    room = [*[0] * (2 * len(shape_of(x)) - len(pad)), *pad]
    return ai.pad(x, np.array(room, np.uint32), like(x, constant_val), names[mode])


def _bounds(shape: list[int], begin, end, stride, begin_mask, end_mask, squeeze_mask):
    """Start, stop and step of each axis as vectors of the graph; ends may be computed in it."""
    rank = len(shape)
    squeezed = squeeze_mask or [False] * rank
    opened = [bool(m) and not s for m, s in zip(end_mask or [False] * rank, squeezed, strict=True)]
    steps = [1 if s else step for step, s in zip(stride or [1] * rank, squeezed, strict=True)]
    if any(step < 0 for step in steps):
        raise ValueError("a negative stride")
    begun = begin_mask or [False] * rank
    if isinstance(begin, list) and isinstance(end, list):
        slices = [
            slice(None if m else b, None if o else e).indices(size)
            if not s else (b % size, b % size + 1, 1)
            for b, e, m, o, s, size in zip(begin, end, begun, opened, squeezed, shape, strict=True)
        ]  # fmt: skip
        return ints(*(s[0] for s in slices)), ints(*(s[1] for s in slices)), ints(*steps)
    first = constant(ints(*begin)) if isinstance(begin, list) else ai.cast(begin, np.int32)
    if any(squeezed):
        raise ValueError("an axis that is squeezed at a place known only in the call")
    last = constant(ints(*end)) if isinstance(end, list) else ai.cast(end, np.int32)
    zeros, sizes = constant(ints(*[0] * rank)), constant(ints(*shape))
    if any(begun):
        first = ai.where(constant(np.array(begun, bool)), zeros, first)
    if any(opened):
        last = ai.where(constant(np.array(opened, bool)), sizes, last)
    return first, last, ints(*steps)


@op()
def slice_by_index(
    x: Any, begin: Any, end: Any, stride: list[int] | None = None,
    begin_mask: list[bool] | None = None, end_mask: list[bool] | None = None,
    squeeze_mask: list[bool] | None = None, *, _out: list,
) -> Any:  # fmt: skip
    if isinstance(begin, list) and isinstance(end, list) and min(stride or [1]) < 0:
        made = _backwards(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    else:
        bounds = _bounds(shape_of(x), begin, end, stride, begin_mask, end_mask, squeeze_mask)
        made = ai.slice_(x, *bounds)
    return reshaped(made, list(_out[0].shape))


def _backwards(x: Any, begin, end, stride, begin_mask, end_mask, squeeze_mask) -> Any:
    """A slice by the places of each axis, which may be walked from the end."""
    none = [False] * len(begin)
    masks = (mask or none for mask in (begin_mask, end_mask, squeeze_mask))
    rows = zip(begin, end, stride, *masks, strict=True)
    for axis, (b, e, step, open_begin, open_end, one) in enumerate(rows):
        size = shape_of(x)[axis]
        which = slice(None if open_begin else b, None if open_end else e, step)
        places = [b % size] if one else list(range(*which.indices(size)))
        x = x if places == list(range(size)) else take(x, axis, ints(*places))
    return x


@op()
def sliding_windows(x: Any, axis: int, size: int, stride: int = 1, *, _out: list) -> Any:
    """(..., D, ...) -> (..., windows, size, ...)"""
    axis %= len(shape_of(x))
    first = np.arange(_out[0].shape[axis], dtype=np.int32)[:, None] * stride
    places = (first + np.arange(size, dtype=np.int32)).ravel()
    return reshaped(take(x, axis, places), list(_out[0].shape))


@op()
def reverse_sequence(x: Any, lengths: Any, seq_axis: int = 0, batch_axis: int = 0) -> Any:
    shape = shape_of(x)
    sizes = [size if axis in (seq_axis, batch_axis) else 1 for axis, size in enumerate(shape)]
    column = [size if axis == batch_axis else 1 for axis, size in enumerate(shape)]
    row = [size if axis == seq_axis else 1 for axis, size in enumerate(shape)]
    ends = reshaped(ai.cast(lengths, np.int32), column)
    places = constant(np.arange(shape[seq_axis], dtype=np.int32).reshape(row))
    turned = ai.broadcasting_sub(ai.broadcasting_sub(ends, like(ends, 1)), places)
    order = ai.broadcasting_where(ai.broadcasting_greater(ends, places), turned, places)
    order = ai.broadcast_to(reshaped(order, sizes), counts(*shape))
    return ai.gather_along_axis(x, order, np.int32(seq_axis))


@op()
def slice_update(
    x: Any, update: Any, begin: Any, end: Any, stride: list[int] | None = None,
    begin_mask: list[bool] | None = None, end_mask: list[bool] | None = None,
    squeeze_mask: list[bool] | None = None,
) -> Any:  # fmt: skip
    bounds = _bounds(shape_of(x), begin, end, stride, begin_mask, end_mask, squeeze_mask)
    if squeeze_mask and any(squeeze_mask):
        sizes = iter(shape_of(update))
        update = reshaped(update, [1 if s else next(sizes) for s in squeeze_mask])
    return ai.slice_update(x, *bounds, update)


@op()
def slice_by_size(x: Any, begin: Any, size: list[int], *, _out: list) -> Any:
    shape = list(_out[0].shape)
    if isinstance(begin, list):
        begin = [b % n for b, n in zip(begin, shape_of(x), strict=True)]
        end = [b + n for b, n in zip(begin, shape, strict=True)]
        return ai.slice_(x, ints(*begin), ints(*end), ints(*[1] * len(shape)))
    begin = ai.cast(begin, np.int32)
    end = ai.broadcasting_add(begin, constant(ints(*shape)))
    return reshaped(ai.slice_(x, begin, end, ints(*[1] * len(shape))), shape)
