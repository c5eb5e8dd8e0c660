"""Ops that resize images, and moves of depth, batch and space.

A resize takes elements at places that are known beforehand, so it is one or two gathers for each
axis, with the executor's own places and weights.
"""

from typing import Any

from coreai import authoring as ai
from mlprogram.ops.image_resizing import nearest_places, sampling_points
import numpy as np

from . import op
from .common import constant, counts, ints, reshaped, shape_of, wide
from .indexing import take
from .products import padded


def _linear(x: Any, sizes: dict[int, int], mode: str) -> Any:
    def make(x: Any) -> Any:
        for axis, size in sizes.items():
            last = shape_of(x)[axis] - 1
            points = sampling_points(mode, 0, last, size).clamp(0, last).numpy()
            low = np.floor(points).astype(np.int32)
            column = (points - low).astype(np.float32).reshape([-1] + [1] * (-axis - 1))
            below, above = take(x, axis, low), take(x, axis, np.minimum(low + 1, last))
            step = ai.broadcasting_mul(ai.broadcasting_sub(above, below), constant(column))
            x = ai.broadcasting_add(below, step)
        return x

    return wide(make, x)


def _nearest(x: Any, sizes: dict[int, int], offset: float) -> Any:
    for axis, size in sizes.items():
        places = nearest_places(shape_of(x)[axis], size, offset)
        x = take(x, axis, places.numpy().astype(np.int32))
    return x


def _last_two(_out: list) -> dict[int, int]:
    return {-2: _out[0].shape[-2], -1: _out[0].shape[-1]}


@op()
def upsample_nearest_neighbor(x: Any, *, _out: list, **_factors: float) -> Any:
    return _nearest(x, _last_two(_out), 0)


@op()
def resize_nearest_neighbor(x: Any, *, _out: list, **_sizes: int) -> Any:
    return _nearest(x, _last_two(_out), 0.5)


@op()
def upsample_bilinear(
    x: Any, align_corners: bool = True, half_pixel_centers: bool | None = None, *, _out: list,
    **_factors: float,
) -> Any:  # fmt: skip
    other = "DEFAULT" if half_pixel_centers is False else "UNALIGN_CORNERS"
    return _linear(x, _last_two(_out), "STRICT_ALIGN_CORNERS" if align_corners else other)


@op()
def resize_bilinear(x: Any, sampling_mode: str = "DEFAULT", *, _out: list, **_sizes: int) -> Any:
    return _linear(x, _last_two(_out), sampling_mode)


@op()
def resize(
    x: Any, shape: list[int], resized_dims: int, interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT", *, _out: list,
) -> Any:  # fmt: skip
    wanted = shape[len(shape) - resized_dims :]
    sizes = {i - resized_dims: size for i, size in enumerate(wanted) if size}
    if interpolation_mode == "LINEAR":
        return _linear(x, sizes, sampling_mode)
    if sampling_mode in ("DEFAULT", "UNALIGN_CORNERS"):
        return _nearest(x, sizes, 0.5)
    for axis, size in sizes.items():
        last = shape_of(x)[axis] - 1
        points = sampling_points(sampling_mode, 0, last, size).numpy()
        x = take(x, axis, np.floor(points + 0.5).clip(0, last).astype(np.int32))
    return x


@op()
def crop(x: Any, crop_height: list[int], crop_width: list[int]) -> Any:
    shape = shape_of(x)
    begin, end = [0] * len(shape), list(shape)
    for axis, (before, after) in ((-2, crop_height), (-1, crop_width)):
        begin[axis], end[axis] = before, shape[axis] - after
    return ai.slice_(x, ints(*begin), ints(*end), ints(*[1] * len(shape)))


def _moved(x: Any, parts: list[int], order: list[int], shape: list[int]) -> Any:
    return reshaped(ai.transpose(reshaped(x, parts), counts(*order)), shape)


@op()
def depth_to_space(x: Any, block_size: int) -> Any:
    (n, c, h, w), b = shape_of(x), block_size
    c //= b * b
    return _moved(x, [n, b, b, c, h, w], [0, 3, 4, 1, 5, 2], [n, c, h * b, w * b])


@op()
def space_to_depth(x: Any, block_size: int) -> Any:
    (n, c, h, w), b = shape_of(x), block_size
    h, w = h // b, w // b
    return _moved(x, [n, c, h, b, w, b], [0, 3, 5, 1, 2, 4], [n, c * b * b, h, w])


@op()
def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    (n, c, h, w), f = shape_of(x), upscale_factor
    c //= f * f
    return _moved(x, [n, c, f, f, h, w], [0, 1, 4, 2, 5, 3], [n, c, h * f, w * f])


@op()
def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    (n, c, h, w), f = shape_of(x), downscale_factor
    h, w = h // f, w // f
    return _moved(x, [n, c, h, f, w, f], [0, 1, 3, 5, 2, 4], [n, c * f * f, h, w])


@op()
def space_to_batch(x: Any, block_shape: list[int], paddings: list[list[int]]) -> Any:
    x = padded(x, [(before, after) for before, after in paddings])
    (n, c, h, w), (bh, bw) = shape_of(x), block_shape
    h, w = h // bh, w // bw
    return _moved(x, [n, c, h, bh, w, bw], [3, 5, 0, 1, 2, 4], [bh * bw * n, c, h, w])


@op()
def batch_to_space(x: Any, block_shape: list[int], crops: list[list[int]]) -> Any:
    (n, c, h, w), (bh, bw) = shape_of(x), block_shape
    n //= bh * bw
    whole = _moved(x, [bh, bw, n, c, h, w], [2, 3, 4, 0, 5, 1], [n, c, h * bh, w * bw])
    return crop(whole, *crops)
