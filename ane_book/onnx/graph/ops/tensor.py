"""Shapes, places and types of tensors."""

from functools import partial
from math import prod

import numpy as np

from . import Constant, Unsayable, operator
from ._axes import is_high, on_axis, split_at, transposed
from ._common import (
    MOST_AXES,
    Tensor,
    all_axes,
    as_int,
    is_bool,
    is_float,
    mb,
    mil_dtype,
    moved,
    rank,
    reshaped,
    select,
    shape_of,
    sliced,
)


@operator("Identity")
def identity(x: Tensor) -> Tensor:
    return mb.identity(x=x)


@operator("Concat", since=4)
def concat(*tensors: Tensor, axis: int) -> Tensor:
    full = [x for x in tensors if 0 not in x.shape]
    if is_high(full[0]):
        before, after = split_at(shape_of(full[0]), axis % rank(full[0]))
        seen = [reshaped(x, [prod(before), int(x.shape[axis]), prod(after)]) for x in full]
        return reshaped(concat(*seen, axis=1), [*before, -1, *after])
    if is_bool(full[0]):
        return mb.cast(x=concat(*map(as_int, full), axis=axis), dtype="bool")
    return mb.concat(values=full, axis=axis) if len(full) > 1 else mb.identity(x=full[0])


@operator("Transpose")
def transpose(x: Tensor, *, perm=None) -> Tensor:
    perm = list(range(rank(x)))[::-1] if perm is None else perm
    return transposed(x, perm) if rank(x) > 1 else mb.identity(x=x)


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
    if is_high(x):
        return reshaped(x, [size for axis, size in enumerate(sizes) if axis not in gone])
    return mb.squeeze(x=x, axes=gone) if gone else mb.identity(x=x)


@operator("Unsqueeze")
def unsqueeze(x: Tensor, axes: Constant) -> Tensor:
    new = np.asarray(axes).reshape(-1)
    new = all_axes(new, rank(x) + len(new))
    if rank(x) + len(new) > MOST_AXES:
        sizes = iter(shape_of(x))
        return reshaped(x, [1 if a in new else next(sizes) for a in range(rank(x) + len(new))])
    return mb.expand_dims(x=x, axes=new)


@operator("Expand")
def expand(x: Tensor, shape: Constant) -> Tensor:
    """Sizes of one are repeated; the shape and x broadcast against each other."""
    want = np.broadcast_shapes(tuple(int(s) for s in shape), tuple(int(s) for s in x.shape))
    new = len(want) - rank(x)
    if new:
        x = unsqueeze(x, np.arange(new))
    times = [size // int(old) for size, old in zip(want, x.shape, strict=True)]
    return tile(x, np.array(times))


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Constant) -> Tensor:
    if is_high(x):
        for axis, count in enumerate(repeats):
            x = on_axis(x, axis, partial(tile, repeats=np.array([1, count, 1])))
        return x
    if all(count == 1 for count in repeats):
        return x
    return moved(lambda x: mb.tile(x=x, reps=np.asarray(repeats, np.int32)), x)


@operator("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return moved(lambda x, y: select(condition, x, y), x, y)


# --- room around


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
    fill = 0 if value is None or not value.size else value.reshape(-1)[0]
    if not is_float(x):
        return _surrounded(x, room, fill)
    fill = np.float32(fill)
    return mb.pad(x=x, pad=room.reshape(-1), mode="constant", constant_val=fill)


def _surrounded(x: Tensor, room: np.ndarray, fill) -> Tensor:
    """Whole numbers and truth, which MIL's own op does not take, an axis at a time."""
    dtype = bool if is_bool(x) else np.int32
    for axis, sides in enumerate(room.tolist()):
        size = [int(size) for size in x.shape]
        before, after = (np.full([*size[:axis], n, *size[axis + 1 :]], fill, dtype) for n in sides)
        x = concat(before, x, after, axis=axis) if any(sides) else x
    return x


def _padded(x: Tensor, room: np.ndarray, mode: bytes) -> Tensor:
    """An axis at a time, by the indices of what stands there."""
    for axis, (before, after) in enumerate(room.tolist()):
        size = int(x.shape[axis])
        places = np.pad(np.arange(size), (before, after), mode=mode.decode())
        if before or after:
            x = mb.gather(x=x, indices=places.astype(np.int32), axis=axis)
    return x


@operator("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Constant, *, axes=None) -> Tensor:
    """Sides are cut, or zeros added, so that the middle stays; an odd one is at the end."""
    for axis, want in zip(all_axes(axes, rank(x)), shape, strict=True):
        size, want = int(x.shape[axis]), int(want)
        if want < size:
            begin = (size - want) // 2
            x = sliced(x, axis, begin, begin + want)
        elif want > size:
            before = (want - size) // 2
            x = pad(x, np.array([before, want - size - before]), axes=np.array([axis]))
    return mb.identity(x=x)


# --- blocks


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode=b"DCR") -> Tensor:
    if mode == b"CRD":
        return mb.pixel_shuffle(x=x, upscale_factor=blocksize)
    return mb.depth_to_space(x=x, block_size=blocksize)


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode=b"DCR") -> Tensor:
    if mode == b"CRD":
        return mb.pixel_unshuffle(x=x, downscale_factor=np.uint32(blocksize))
    return mb.space_to_depth(x=x, block_size=blocksize)


# --- types


@operator("Cast", "CastLike", since=6)
def cast(
    x: Tensor, like: Tensor | None = None, *, to=None, saturate=1, round_mode=None, dtype: np.dtype
) -> Tensor:
    """To fp32, int32 or bool, whichever stands for the type."""
    if dtype.name.startswith(("float8", "float4")):
        raise Unsayable(f"numbers of type {dtype.name}")
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
