"""Operators that reshape, rearrange, pad or cast tensors."""

from collections.abc import Callable
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
    check_constant,
    check_tensor,
    is_bool,
    is_float,
    like,
    mb,
    mil_dtype,
    moved,
    one_axis,
    rank,
    reshaped,
    select,
    shape_of,
    sliced,
)


@operator("Concat", since=4)
def concat(*tensors: Tensor, axis: int) -> Tensor:
    full = [x for x in tensors if 0 not in x.shape]
    if is_high(full[0]):
        before, after = split_at(shape_of(full[0]), one_axis(axis, rank(full[0])))
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
    before = axis if axis == rank(x) else one_axis(axis, rank(x))
    return reshaped(x, [prod(shape_of(x)[:before]), -1])


@operator("Squeeze")
def squeeze(x: Tensor, axes: Constant | None = None) -> Tensor:
    sizes = shape_of(x)
    ones = [axis for axis, size in enumerate(sizes) if size == 1]
    gone = ones if axes is None else all_axes(axes, rank(x))
    if is_high(x):
        return reshaped(x, [size for axis, size in enumerate(sizes) if axis not in gone])
    return mb.squeeze(x=x, axes=gone) if gone else mb.identity(x=x)


@operator("Unsqueeze")
def unsqueeze(x: Tensor, axes: Constant) -> Tensor:
    count = rank(x) + np.size(axes)
    new = all_axes(axes, count)
    if count > MOST_AXES:
        sizes = iter(shape_of(x))
        return reshaped(x, [1 if axis in new else next(sizes) for axis in range(count)])
    return mb.expand_dims(x=x, axes=new)


@operator("Expand")
def expand(x: Tensor, shape: Constant) -> Tensor:
    """Broadcast x and `shape` against each other."""
    want = np.broadcast_shapes(tuple(int(size) for size in shape), tuple(shape_of(x)))
    if new := len(want) - rank(x):
        x = unsqueeze(x, np.arange(new))
    return tile(x, np.array(want) // shape_of(x))


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Constant) -> Tensor:
    if is_high(x):
        for axis, count in enumerate(repeats):
            x = on_axis(x, axis, partial(tile, repeats=np.array([1, count, 1])))
        return x
    if all(count == 1 for count in repeats):
        return x
    check_tensor(*(size * int(count) for size, count in zip(shape_of(x), repeats, strict=True)))
    return moved(lambda x: mb.tile(x=x, reps=np.asarray(repeats, np.int32)), x)


operator("Identity")(lambda x: mb.identity(x=x))
operator("IsNaN")(lambda x: mb.not_equal(x=x, y=x))
operator("Where")(lambda condition, x, y: moved(lambda a, b: select(condition, a, b), x, y))


# --- room around


@operator("Pad", since=2)
def pad(
    x: Tensor, pads: Constant, value: Constant | None = None, axes: Constant | None = None, *,
    mode=b"constant",
) -> Tensor:  # fmt: skip
    """Pad; negative padding crops. What MIL's op does not take is composed axis by axis."""
    chosen = all_axes(axes, rank(x))
    around = np.asarray(pads, np.int64).reshape(2, len(chosen)).T
    for axis, (before, after) in zip(chosen, around.tolist(), strict=True):
        start, end = max(0, -before), int(x.shape[axis]) - max(0, -after)
        if start >= end:
            raise Unsayable(f"a cut of {before} and {after} off an axis of {x.shape[axis]}")
        if min(before, after) < 0:
            x = sliced(x, axis, start, end)
    room = np.zeros((rank(x), 2), np.int32)
    room[chosen] = np.maximum(around, 0)
    if not room.any():
        return mb.identity(x=x)
    check_tensor(*(size + sum(r) for size, r in zip(shape_of(x), room.tolist(), strict=True)))
    fill = 0 if value is None or not value.size else value.reshape(-1)[0]
    if mode == b"constant" and is_float(x):
        pad = room.reshape(-1)
        return mb.pad(x=x, pad=pad, mode="constant", constant_val=np.float32(fill))
    for axis, sides in enumerate(room.tolist()):  # what MIL's own op does not take, by axes
        if any(sides):
            x = _surrounded(x, axis, sides, fill, mode)
    return x


#: Modes of Pad -> the elements at places before, in and after an axis of n.
PLACES: dict[bytes, Callable[[np.ndarray, int], np.ndarray]] = {
    b"edge": lambda at, n: at.clip(0, n - 1),
    b"reflect": lambda at, n: n - 1 - np.abs(n - 1 - at % max(1, 2 * n - 2)),
    b"wrap": lambda at, n: at % n,
}


def _surrounded(x: Tensor, axis: int, sides: list[int], fill: float, mode: bytes) -> Tensor:
    """Pad one axis with a constant, or with gathered elements of x."""
    size = shape_of(x)
    if mode == b"constant":
        dtype = bool if is_bool(x) else np.int32
        check_constant(sum(sides), *size[:axis], *size[axis + 1 :])
        before, after = (np.full([*size[:axis], n, *size[axis + 1 :]], fill, dtype) for n in sides)
        return concat(before, x, after, axis=axis)
    check_constant(sum(sides))
    places = PLACES[mode](np.arange(-sides[0], size[axis] + sides[1]), size[axis])
    return mb.gather(x=x, indices=places.astype(np.int32), axis=axis)


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
    x: Tensor, target: Tensor | None = None, *, to=None, saturate=1, round_mode=None,
    dtype: np.dtype,
) -> Tensor:  # fmt: skip
    """Cast to fp32, int32 or bool, whichever represents the type."""
    if dtype.name.startswith(("float8", "float4")):
        raise Unsayable(f"numbers of type {dtype.name}")
    kind = mil_dtype(dtype).kind
    if kind == "b":
        return mb.identity(x=x) if is_bool(x) else mb.not_equal(x=x, y=like(x, 0))
    return mb.cast(x=x, dtype="fp32" if kind == "f" else "int32")


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative=1, detect_positive=1) -> Tensor:
    if detect_negative and detect_positive:
        return mb.equal(x=mb.abs(x=x), y=np.float32(np.inf))
    if not (detect_negative or detect_positive):
        return mb.not_equal(x=mb.mul(x=x, y=np.float32(0)), y=mb.mul(x=x, y=np.float32(0)))
    return mb.equal(x=x, y=np.float32(np.inf if detect_positive else -np.inf))
