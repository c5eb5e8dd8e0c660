"""Shapes, places and types of tensors."""

import numpy as np

from . import Constant, Unsayable, operator
from ._common import (
    Tensor,
    all_axes,
    as_float,
    as_int,
    is_bool,
    is_float,
    mb,
    mil_dtype,
    rank,
    reshaped,
    sliced,
)


@operator("Identity")
def identity(x: Tensor) -> Tensor:
    return mb.identity(x=x)


@operator("Concat", since=4)
def concat(*tensors: Tensor, axis: int) -> Tensor:
    if is_bool(tensors[0]):
        return mb.cast(x=concat(*map(as_int, tensors), axis=axis), dtype="bool")
    return mb.concat(values=list(tensors), axis=axis)


@operator("Transpose")
def transpose(x: Tensor, *, perm=None) -> Tensor:
    perm = list(range(rank(x)))[::-1] if perm is None else perm
    return mb.transpose(x=x, perm=perm) if rank(x) > 1 else mb.identity(x=x)


@operator("Reshape", since=5)
def reshape(x: Tensor, shape: Constant, *, allowzero=0) -> Tensor:
    sizes = [int(size) for size in shape]
    if not allowzero:
        sizes = [size or int(x.shape[axis]) for axis, size in enumerate(sizes)]
    return reshaped(x, sizes)


@operator("Flatten")
def flatten(x: Tensor, *, axis=1) -> Tensor:
    rows = int(np.prod(x.shape[: axis if axis >= 0 else rank(x) + axis], dtype=np.int64))
    return reshaped(x, [rows, -1])


@operator("Squeeze")
def squeeze(x: Tensor, axes: Constant | None = None) -> Tensor:
    sizes = [int(size) for size in x.shape]
    gone = (
        [i for i, size in enumerate(sizes) if size == 1]
        if axes is None
        else all_axes(axes, rank(x))
    )
    return mb.squeeze(x=x, axes=gone) if gone else mb.identity(x=x)


@operator("Unsqueeze")
def unsqueeze(x: Tensor, axes: Constant) -> Tensor:
    new = np.asarray(axes).reshape(-1)
    return mb.expand_dims(x=x, axes=all_axes(new, rank(x) + len(new)))


@operator("Expand")
def expand(x: Tensor, shape: Constant) -> Tensor:
    """Sizes of one are repeated; the shape and x broadcast against each other."""
    want = np.broadcast_shapes(tuple(int(s) for s in shape), tuple(int(s) for s in x.shape))
    new = len(want) - rank(x)
    if new:
        x = mb.expand_dims(x=x, axes=list(range(new)))
    times = [size // int(old) for size, old in zip(want, x.shape, strict=True)]
    return tile(x, np.array(times))


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Constant) -> Tensor:
    if all(count == 1 for count in repeats):
        return mb.identity(x=x)
    if is_bool(x):
        return mb.cast(x=tile(as_int(x), repeats), dtype="bool")
    return mb.tile(x=x, reps=np.asarray(repeats, np.int32))


@operator("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if is_bool(x):
        return mb.cast(x=where(condition, as_int(x), as_int(y)), dtype="bool")
    return mb.select(cond=condition, a=x, b=y)


@operator("Shape", "Size")
def shape(x: Tensor) -> Tensor:
    raise Unsayable("the shape of a tensor whose shape is not known")  # known ones are folded


# --- parts


@operator("Slice", since=10)
def slice_(
    x: Tensor,
    starts: Constant,
    ends: Constant,
    axes: Constant | None = None,
    steps: Constant | None = None,
) -> Tensor:
    """As Python's slices; a step backward is a reversal and a step forward."""
    axes = range(len(starts)) if axes is None else all_axes(axes, rank(x))
    steps = [1] * len(starts) if steps is None else steps
    if is_bool(x):
        return mb.cast(
            x=slice_(as_int(x), starts, ends, np.array(list(axes)), np.array(steps)), dtype="bool"
        )
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = _slice(x, axis, slice(int(start), int(end), int(step)))
    return mb.identity(x=x)


def _slice(x: Tensor, axis: int, taken: slice) -> Tensor:
    size = int(x.shape[axis])
    chosen = range(size)[taken]
    if not len(chosen):
        raise Unsayable(f"an empty slice of axis {axis}; Core ML has no empty tensors")
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
    size = int(x.shape[axis])
    if split is None:
        each = -(-size // (num_outputs or outputs))
        split = [min(each, size - at) for at in range(0, size, each)]
    sizes = [int(part) for part in split]
    if min(sizes) < 1:
        raise Unsayable("an empty part; Core ML has no empty tensors")
    if len(sizes) == 1:
        return (mb.identity(x=x),)
    return tuple(mb.split(x=x, split_sizes=sizes, axis=axis))


@operator("Gather")
def gather(x: Tensor, indices: Tensor, *, axis=0) -> Tensor:
    if is_bool(x):
        return mb.cast(x=gather(as_int(x), indices, axis=axis), dtype="bool")
    return mb.gather(x=x, indices=_from_zero(indices, x.shape[axis]), axis=axis)


@operator("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis=0) -> Tensor:
    """MIL wants the other axes as long in x as in the indices."""
    axis %= rank(x)
    for other, size in enumerate(indices.shape):
        if other != axis and int(size) < int(x.shape[other]):
            x = sliced(x, other, 0, int(size))
    return mb.gather_along_axis(x=x, indices=_from_zero(indices, x.shape[axis]), axis=axis)


@operator("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims=0) -> Tensor:
    count = int(indices.shape[-1])
    sizes = np.array([int(s) for s in x.shape[batch_dims : batch_dims + count]], np.int32)
    return mb.gather_nd(x=x, indices=_from_zero(indices, sizes), batch_dims=batch_dims)


def _from_zero(indices: Tensor, size) -> Tensor:
    """Indices counted from the front, and none of them negative; Core ML does not count back."""
    size = np.asarray(size, np.int32)[()]
    if isinstance(indices, np.ndarray):
        return np.where(indices < 0, indices + size, indices).astype(np.int32)
    return mb.select(cond=mb.less(x=indices, y=np.int32(0)), a=mb.add(x=indices, y=size), b=indices)


REDUCTIONS = {b"none": "update", b"add": "add", b"mul": "mul", b"max": "max", b"min": "min"}


@operator("ScatterElements", "Scatter")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis=0, reduction=b"none"
) -> Tensor:
    places = _from_zero(indices, x.shape[axis])
    how = {"axis": axis % rank(x), "mode": REDUCTIONS[reduction]}
    return mb.scatter_along_axis(data=x, indices=places, updates=updates, **how)


@operator("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction=b"none") -> Tensor:
    sizes = np.array([int(s) for s in x.shape[: int(indices.shape[-1])]], np.int32)
    places = _from_zero(indices, sizes)
    return mb.scatter_nd(data=x, indices=places, updates=updates, mode=REDUCTIONS[reduction])


@operator("Compress")
def compress(x: Tensor, condition: Constant, *, axis=None) -> Tensor:
    if axis is None:
        x, axis = reshaped(x, [-1]), 0
    return gather(x, np.flatnonzero(condition).astype(np.int32), axis=axis)


@operator("OneHot")
def one_hot(indices: Tensor, depth: Constant, values: Constant, *, axis=-1) -> Tensor:
    size, (off, on) = int(np.asarray(depth).reshape(-1)[0]), values
    real = values.dtype.kind == "f"
    off, on = (np.float32(v) if real else np.int32(v) for v in (off, on))
    places = _from_zero(as_int(indices), size)
    return mb.one_hot(
        indices=places, one_hot_vector_size=size, axis=axis, on_value=on, off_value=off
    )


@operator("Trilu")
def trilu(x: Tensor, k: Constant | None = None, *, upper=1) -> Tensor:
    """By a mask, which is known."""
    ones = np.ones([int(size) for size in x.shape[-2:]], bool)
    k = 0 if k is None else int(k)
    mask = np.triu(ones, k) if upper else np.tril(ones, k)
    zero = np.float32(0) if is_float(x) else np.int32(0)
    if is_bool(x):
        return mb.logical_and(x=x, y=mask)
    return mb.select(cond=mask, a=x, b=zero)


@operator("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, time_axis=0, batch_axis=1) -> Tensor:
    return mb.reverse_sequence(x=x, lengths=lengths, seq_axis=time_axis, batch_axis=batch_axis)


# --- room around


MODES = {b"constant": "constant", b"reflect": "reflect", b"edge": "replicate"}


@operator("Pad", since=2)
def pad(
    x: Tensor,
    pads: Constant,
    value: Constant | None = None,
    axes: Constant | None = None,
    *,
    mode=b"constant",
) -> Tensor:
    """Negative room cuts away; what MIL does not have of the modes is made of parts of x."""
    axes = all_axes(axes, rank(x))
    sides = np.asarray(pads, np.int64).reshape(2, len(axes)).T
    for axis, (before, after) in zip(axes, sides.tolist(), strict=True):
        size = int(x.shape[axis])
        if min(before, after) < 0:
            x = sliced(x, axis, max(0, -before), size - max(0, -after))
    room = np.zeros((rank(x), 2), np.int32)
    room[axes] = np.maximum(sides, 0)
    if not room.any():
        return mb.identity(x=x)
    if mode != b"constant":
        return _padded(x, room, mode)
    if is_bool(x):
        filled = mb.pad(
            x=as_float(x), pad=room.reshape(-1), mode="constant", constant_val=float(value or 0)
        )
        return mb.cast(x=filled, dtype="bool")
    fill = (
        np.float32(0 if value is None else value)
        if is_float(x)
        else np.int32(0 if value is None else value)
    )
    return mb.pad(x=x, pad=room.reshape(-1), mode="constant", constant_val=fill)


def _padded(x: Tensor, room: np.ndarray, mode: bytes) -> Tensor:
    """An axis at a time, by the indices of what stands there."""
    for axis, (before, after) in enumerate(room.tolist()):
        size = int(x.shape[axis])
        places = np.pad(np.arange(size), (before, after), mode=mode.decode())
        if before or after:
            x = mb.gather(x=x, indices=places.astype(np.int32), axis=axis)
    return x


# --- blocks


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode=b"DCR") -> Tensor:
    if mode == b"CRD":
        return mb.pixel_shuffle(x=x, upscale_factor=blocksize)
    return mb.depth_to_space(x=x, block_size=blocksize)


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode=b"DCR") -> Tensor:
    if mode == b"CRD":
        return mb.pixel_unshuffle(x=x, downscale_factor=blocksize)
    return mb.space_to_depth(x=x, block_size=blocksize)


# --- types


@operator("Cast", "CastLike", since=6)
def cast(
    x: Tensor, like: Tensor | None = None, *, to=None, saturate=1, round_mode=None, dtype: np.dtype
) -> Tensor:
    """To fp32, int32 or bool, whichever stands for the type."""
    kind = mil_dtype(dtype).kind
    if kind == "b":
        return (
            mb.not_equal(x=x, y=np.float32(0) if is_float(x) else np.int32(0))
            if not is_bool(x)
            else mb.identity(x=x)
        )
    return mb.cast(x=x, dtype="fp32" if kind == "f" else "int32")


@operator("IsNaN")
def is_nan(x: Tensor) -> Tensor:
    return mb.not_equal(x=x, y=x)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative=1, detect_positive=1) -> Tensor:
    x = mb.identity(x=x) if detect_negative or detect_positive else x
    if detect_negative and detect_positive:
        return mb.equal(x=mb.abs(x=x), y=np.float32(np.inf))
    if not (detect_negative or detect_positive):
        return mb.not_equal(x=mb.mul(x=x, y=np.float32(0)), y=mb.mul(x=x, y=np.float32(0)))
    return mb.equal(x=x, y=np.float32(np.inf if detect_positive else -np.inf))
