"""Slices, gathers and scatters."""

from functools import partial
from math import prod

import numpy as np

from . import Bound, Constant, Unsayable, operator
from ._axes import is_high, on_axis
from ._common import (
    MOST_AXES,
    Tensor,
    all_axes,
    as_int,
    first,
    is_bool,
    like,
    mb,
    moved,
    one_axis,
    rank,
    reshaped,
    select,
    shape_of,
    sliced,
)  # fmt: skip


@operator("Slice", since=10)
def slice_(
    x: Tensor, starts: Bound, ends: Bound, axes: Constant | None = None, steps: Bound | None = None
) -> Tensor:  # fmt: skip
    """Slice as Python does; a negative step is a reversal and a positive step."""
    if is_bool(x):
        return mb.cast(x=slice_(as_int(x), starts, ends, axes, steps), dtype="bool")
    chosen = range(len(starts)) if axes is None else all_axes(axes, rank(x))
    steps = np.ones_like(starts) if steps is None else steps
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        x = _slice(x, axis, slice(int(start), int(end), int(step)))
    return x


def _slice(x: Tensor, axis: int, taken: slice) -> Tensor:
    if is_high(x):
        return on_axis(x, axis, partial(_slice, axis=1, taken=taken))
    size = int(x.shape[axis])
    chosen = range(size)[taken]
    if not len(chosen):
        return _empty(x, axis)
    if len(chosen) == 1:  # by whatever step
        chosen = range(chosen[0], chosen[0] + 1)
    if len(chosen) == size and chosen.step > 0:
        return x
    if chosen.step < 0:
        x = mb.reverse(x=x, axes=[axis])
        chosen = range(size - 1 - chosen.start, size - chosen[-1], -chosen.step)
    return sliced(x, axis, chosen.start, chosen[-1] + 1, chosen.step)


@operator("Split")
def split(
    x: Tensor, split: Constant | None = None, *, axis=0, num_outputs=None, outputs: int = 1
) -> tuple[Tensor, ...]:
    axis = one_axis(axis, rank(x))
    size = int(x.shape[axis])
    each = -(-size // outputs)
    even = [max(0, min(each, size - each * i)) for i in range(outputs)]
    sizes = even if split is None else [int(part) for part in split]
    asked = len(sizes) if num_outputs is None else num_outputs
    if asked != outputs or min(sizes) < 0 or sum(sizes) != size:
        raise Unsayable(f"{asked:,} parts of an axis of {size} as {outputs}: {sizes}")
    if is_high(x):
        ends = np.cumsum(sizes).tolist()
        places = [slice(end - part, end) for part, end in zip(sizes, ends, strict=True)]
        return tuple(_slice(x, axis, place) for place in places)
    full = [part for part in sizes if part]
    parts = iter(mb.split(x=x, split_sizes=full, axis=axis) if len(full) > 1 else [x])
    return tuple(next(parts) if part else _empty(x, axis) for part in sizes)


def _empty(x: Tensor, axis: int) -> np.ndarray:
    """x with size 0 on an axis."""
    shape = shape_of(x)
    shape[axis] = 0
    return np.full(shape, like(x, 0))


@operator("Gather")
def gather(x: Tensor, indices: Tensor, *, axis=0) -> Tensor:
    axis = one_axis(axis, rank(x))
    if rank(x) + rank(indices) - 1 > MOST_AXES or is_high(x, indices):
        flat = partial(gather, indices=reshaped(indices, [-1]), axis=1)
        return on_axis(x, axis, flat, shape_of(indices))
    places = _from_zero(indices, x.shape[axis])
    return moved(lambda x: mb.gather(x=x, indices=places, axis=axis), x)


@operator("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis=0) -> Tensor:
    """Gather after cutting x's other axes to the indices' sizes, which MIL demands."""
    axis = one_axis(axis, rank(x))

    def gathered(x: Tensor) -> Tensor:
        for other, size in enumerate(indices.shape):
            if other != axis and int(size) < int(x.shape[other]):
                x = sliced(x, other, 0, int(size))
        return mb.gather_along_axis(x=x, indices=_from_zero(indices, x.shape[axis]), axis=axis)

    return moved(gathered, x)


@operator("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims=0) -> Tensor:
    """As rows of a table: Core ML's `gather_nd` by computed indices may give slice 0."""
    *places, count = shape_of(indices)
    if not 0 <= batch_dims <= len(places) or batch_dims + count > rank(x):
        raise Unsayable(f"batch_dims {batch_dims} of {rank(x)} axes, {count} of them indexed")
    batch, sizes = shape_of(x)[:batch_dims], shape_of(x)[batch_dims : batch_dims + count]
    rest = shape_of(x)[batch_dims + count :]
    steps = np.array([prod(sizes[axis + 1 :]) for axis in range(count)], np.int32)
    begins = np.arange(prod(batch), dtype=np.int32) * np.int32(prod(sizes))
    named = _from_zero(indices, sizes)
    rows: Tensor
    if isinstance(named, np.ndarray):
        rows = (named * steps).sum(-1, dtype=np.int32)
    else:
        rows = mb.reduce_sum(x=mb.mul(x=named, y=steps), axes=[-1], keep_dims=False)
    if batch:
        begins = begins.reshape(batch + [1] * (len(places) - batch_dims))
        rows = rows + begins if isinstance(rows, np.ndarray) else mb.add(x=rows, y=begins)
    table = reshaped(x, [prod(batch) * prod(sizes), prod(rest)])
    return reshaped(gather(table, reshaped(rows, [-1])), [*places, *rest])


def _from_zero(indices: Tensor, size) -> Tensor:
    """Make negative indices, which count from the end and which Core ML lacks, non-negative.

    Raises Unsayable for a constant index beyond the size.
    """
    size = np.asarray(size, np.int32)[()]
    if isinstance(indices, np.ndarray):
        beyond = (indices < -size) | (indices >= size)
        if beyond.any():
            raise Unsayable(f"index {indices[beyond][0]} of an axis of {size}")
        return np.where(indices < 0, indices + size, indices).astype(np.int32)
    return _counted(indices, size)


def _counted(indices: Tensor, size: np.ndarray | np.generic) -> Tensor:
    return select(mb.less(x=indices, y=np.int32(0)), mb.add(x=indices, y=size), indices)


MODES = {b"none": "update", b"add": "add", b"mul": "mul", b"max": "max", b"min": "min"}


@operator("ScatterElements", "Scatter")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis=0, reduction=b"none"
) -> Tensor:
    axis = one_axis(axis, rank(x))
    places = _from_zero(indices, x.shape[axis])
    how = {"indices": places, "axis": axis, "mode": MODES[reduction]}
    return moved(lambda x, new: mb.scatter_along_axis(data=x, updates=new, **how), x, updates)


@operator("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction=b"none") -> Tensor:
    places = _from_zero(indices, shape_of(x)[: int(indices.shape[-1])])
    how = {"indices": places, "mode": MODES[reduction]}
    return moved(lambda x, new: mb.scatter_nd(data=x, updates=new, **how), x, updates)


@operator("Compress")
def compress(x: Tensor, condition: Constant, *, axis=None) -> Tensor:
    if axis is None:
        x, axis = reshaped(x, [-1]), 0
    return gather(x, np.flatnonzero(condition).astype(np.int32), axis=axis)


@operator("OneHot")
def one_hot(indices: Tensor, depth: Constant, values: Constant, *, axis=-1) -> Tensor:
    size, (off, on) = first(depth), values
    places = _counted(as_int(indices), np.int32(size))  # those beyond the size are off
    return mb.one_hot(
        indices=places, one_hot_vector_size=size, axis=axis, on_value=like(values, on),
        off_value=like(values, off),
    )  # fmt: skip


@operator("Trilu")
def trilu(x: Tensor, k: Constant | None = None, *, upper=1) -> Tensor:
    """Select the triangle with a constant mask."""
    cut = np.triu if upper else np.tril
    mask = cut(np.ones(shape_of(x)[-2:], bool), 0 if k is None else int(k))
    return mb.logical_and(x=x, y=mask) if is_bool(x) else select(mask, x, like(x, 0))


operator("ReverseSequence")(
    lambda x, lengths, *, time_axis=0, batch_axis=1: mb.reverse_sequence(
        x=x, lengths=lengths, seq_axis=time_axis, batch_axis=batch_axis
    )
)
