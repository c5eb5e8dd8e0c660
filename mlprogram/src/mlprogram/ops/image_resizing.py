"""Ops that sample images: resize, crop, affine maps and sampling at given coordinates.

Everything is linear interpolation or nearest neighbour on the last axes: first the points at which
an axis is sampled, as float64 positions in pixels, then `_sample` along that axis. Interpolation is
in float32 and rounded once.

Reference: coremltools `defs/iOS15..iOS17/image_resizing.py`.
Letters: B batch, C channels, H and W height and width, N boxes, h and w the size of the result.
"""

from math import floor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import op

Sampling = Literal[
    "DEFAULT", "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "OFFSET_CORNERS"
]
BoxCoordinates = Literal[
    "CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST",
    "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST",
]  # fmt: skip
Padding = Literal["constant", "border", "reflection", "symmetric"]
Coordinates = Literal["unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"]


def sampling_points(mode: str, start: float, end: float, count: int) -> Tensor:
    """`count` sampling points on the pixels start..end by MIL's sampling mode, as float64."""
    i = torch.arange(count, dtype=torch.float64)
    size = end - start + 1
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if count > 1:
            return start + i * ((end - start) / (count - 1))
        return i + (start if mode == "STRICT_ALIGN_CORNERS" else (start + end) / 2)
    if mode == "OFFSET_CORNERS":
        return start + (i + 0.5) * (max(1, end - start) / count)
    if mode == "UNALIGN_CORNERS":
        return start + (i + 0.5) * (size / count) - 0.5
    return start + i * (size / count)  # "DEFAULT"


def _sample(x: Tensor, axis: int, points: Tensor) -> Tensor:
    """x (float32) interpolated at `points` along an axis; points beyond the edge take the edge."""
    last = x.shape[axis] - 1
    points = points.clamp(0, last)
    low = points.floor().long()
    weight = (points - low).to(x.dtype).reshape([-1] + [1] * (x.dim() - axis % x.dim() - 1))
    below = x.index_select(axis, low)
    above = x.index_select(axis, (low + 1).clamp(max=last))
    return below + (above - below) * weight


def _linear(x: Tensor, sizes: dict[int, int], mode: str) -> Tensor:
    """x resized along axes, {axis: size}, by linear interpolation."""
    y = x.float()
    for axis, size in sizes.items():
        y = _sample(y, axis, sampling_points(mode, 0, x.shape[axis] - 1, size))
    return y.to(x.dtype)


def nearest_places(old: int, size: int, offset: float) -> Tensor:
    """The elements that an axis of `old` is resized to: floor((i + offset) * old / size), int64."""
    places = (torch.arange(size) * 2 + round(2 * offset)) * old // (2 * size)
    return places.clamp(max=old - 1)


def _nearest(x: Tensor, sizes: dict[int, int], offset: float) -> Tensor:
    """x resized along axes: element floor((i + offset) * old / new) for every i."""
    for axis, size in sizes.items():
        x = x.index_select(axis, nearest_places(x.shape[axis], size, offset))
    return x


def _scaled(x: Tensor, height: float, width: float) -> dict[int, int]:
    """The last two sizes times their factors, rounded down, as MIL computes them: in float32."""
    factors = {-2: height, -1: width}
    return {axis: floor(np.float32(f) * np.float32(x.shape[axis])) for axis, f in factors.items()}


@op()
def upsample_nearest_neighbor(
    x: Tensor, scale_factor_height: float = 1, scale_factor_width: float = 1
) -> Tensor:
    """(*, H, W) -> (*, floor(H * factor), floor(W * factor)); element i is floor(i * old / new)."""
    return _nearest(x, _scaled(x, scale_factor_height, scale_factor_width), 0)


@op()
def resize_nearest_neighbor(x: Tensor, target_size_height: int, target_size_width: int) -> Tensor:
    """(*, H, W) -> the target size; the element under the centre, floor((i + 1/2) * old / new).

    This is TensorFlow's `half_pixel_centers`, for which Apple's converter emits this op.
    """
    return _nearest(x, {-2: target_size_height, -1: target_size_width}, 0.5)


@op()
def upsample_bilinear(
    x: Tensor,
    scale_factor_height: float = 1,
    scale_factor_width: float = 1,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Tensor:
    """(*, H, W) -> (*, floor(H * factor), floor(W * factor)), bilinear, spacing from the sizes.

    half_pixel_centers defaults to not align_corners; neither of them is the mode "DEFAULT".
    """
    if align_corners:
        mode = "STRICT_ALIGN_CORNERS"
    else:
        mode = "DEFAULT" if half_pixel_centers is False else "UNALIGN_CORNERS"
    return _linear(x, _scaled(x, scale_factor_height, scale_factor_width), mode)


@op()
def resize_bilinear(
    x: Tensor,
    target_size_height: int = 1,
    target_size_width: int = 1,
    sampling_mode: Sampling = "DEFAULT",
) -> Tensor:
    """(*, H, W) -> the target size, bilinear at the points of the sampling mode."""
    return _linear(x, {-2: target_size_height, -1: target_size_width}, sampling_mode)


@op()
def resize(
    x: Tensor,
    shape: list[int],
    resized_dims: int,
    interpolation_mode: Literal["LINEAR", "NEAREST_NEIGHBOR"] = "LINEAR",
    sampling_mode: Sampling = "DEFAULT",
) -> Tensor:
    """The last `resized_dims` axes in the sizes that end `shape`; 0 keeps an axis as it is.

    Nearest neighbour takes the element nearest to the mode's point, the upper one in the middle; in
    "DEFAULT" that is `resize_nearest_neighbor`, for which Apple's converter emits this op too.
    """
    wanted = shape[len(shape) - resized_dims :]
    sizes = {i - resized_dims: size for i, size in enumerate(wanted) if size}
    if not sizes:
        return x.clone()
    if interpolation_mode == "LINEAR":
        return _linear(x, sizes, sampling_mode)
    if sampling_mode in ("DEFAULT", "UNALIGN_CORNERS"):
        return _nearest(x, sizes, 0.5)
    for axis, size in sizes.items():
        last = x.shape[axis] - 1
        points = sampling_points(sampling_mode, 0, last, size)
        x = x.index_select(axis, (points + 0.5).floor().long().clamp(0, last))
    return x


@op()
def crop(x: Tensor, crop_height: list[int], crop_width: list[int]) -> Tensor:
    """(*, H, W) without crop[0] elements before and crop[1] after, for height and width."""
    (top, bottom), (left, right) = crop_height, crop_width
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right].clone()


# --- boxes ------------------------------------------------------------------------------------


def _corners(box: list[float], mode: str) -> tuple[float, float, float, float]:
    """A box in any coordinate mode as (top, left, bottom, right)."""
    a, b, c, d = box
    if mode.endswith("WIDTH_FIRST"):
        a, b, c, d = b, a, d, c
    if mode.startswith("CENTER_SIZE"):
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return a, b, c, d


def _cut(
    x: Tensor, axis: int, start: float, end: float, count: int, mode: str, pad_value: float
) -> Tensor:
    """x sampled at `count` points of start..end along axis -2 or -1, `pad_value` outside of it.

    Outside begins at the outer pixels' centres where corners align, as in tf.image.crop_and_resize,
    else a whole pixel beyond them, as in RoIAlign.
    """
    points = sampling_points(mode, start, end, count)
    margin = 0 if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS") else 1
    outside = (points < -margin) | (points > x.shape[axis] - 1 + margin)
    outside = outside.unsqueeze(-1) if axis == -2 else outside
    return _sample(x, axis, points).masked_fill(outside, pad_value)


@op()
def crop_resize(
    x: Tensor,
    roi: Tensor | None = None,
    boxes: Tensor | None = None,
    box_indices: Tensor | None = None,
    target_height: int = 1,
    target_width: int = 1,
    normalized_coordinates: bool = False,
    spatial_scale: float = 1.0,
    box_coordinate_mode: BoxCoordinates = "CORNERS_HEIGHT_FIRST",
    sampling_mode: Sampling = "DEFAULT",
    pad_value: float = 0.0,
) -> Tensor:
    """Boxes of images (B, C, H, W), each resized to the target size by linear interpolation.

    iOS 17: boxes (N, 4), box_indices (N,) -> (N, C, h, w). Before: roi (N, 1, 4, 1, 1), every box
    of every image -> (N, B, C, h, w), or (N, 1, 5, 1, 1), its image first -> (N, 1, C, h, w).
    Normalised coordinates count in (H - 1, W - 1); points beyond the image are `pad_value`.
    """
    rows = boxes if roi is None else roi.flatten(1)
    if rows is None:
        raise ValueError("neither boxes nor roi says what to crop")
    table = rows.double().tolist()
    if roi is None:
        chosen = range(len(table)) if box_indices is None else box_indices.tolist()
    else:  # a slice picks all images, or the one that the box names
        chosen = [slice(int(b[0]), int(b[0]) + 1) if len(b) == 5 else slice(None) for b in table]
    images = x.float()
    patches = []
    for box, image in zip(table, chosen, strict=True):
        patch, corners = images[image], _corners(box[-4:], box_coordinate_mode)
        for axis, target in ((-2, target_height), (-1, target_width)):
            scale = spatial_scale * (x.shape[axis] - 1 if normalized_coordinates else 1)
            start, end = corners[axis + 2] * scale, corners[axis + 4] * scale
            patch = _cut(patch, axis, start, end, target, sampling_mode, pad_value)
        patches.append(patch)
    return torch.stack(patches).to(x.dtype)


# --- sampling at coordinates ------------------------------------------------------------------


def _pixels(coordinates: Tensor, size: int, mode: str, align_corners: bool) -> Tensor:
    """Coordinates in pixels: 0 and size - 1 are the centres of the outer pixels."""
    if mode == "unnormalized":
        return coordinates
    if mode == "normalized_minus_one_to_one":
        coordinates = (coordinates + 1) / 2
    return coordinates * (size - 1) if align_corners else coordinates * size - 0.5


def _inside(points: Tensor, size: int, padding: str) -> Tensor:
    """The place in the image that a padding mode puts at points of the image continued for ever."""
    if padding == "reflection" and size > 1:  # ... 2 1 | 0 1 2 | 1 0 ...
        points = (size - 1) - (points.remainder(2 * (size - 1)) - (size - 1)).abs()
    if padding == "symmetric":  # ... 1 0 | 0 1 2 | 2 1 ..., mirrored at the outer pixels' edges
        points = (size - 0.5) - ((points + 0.5).remainder(2 * size) - size).abs()
    return points.clamp(0, size - 1)


def _fetch(x: Tensor, row: Tensor, column: Tensor, padding: str, value: float) -> Tensor:
    """x (B, C, H, W) at whole places (B, h, w) of the padded image -> (B, C, h, w)."""
    height, width = x.shape[-2:]
    batch = torch.arange(x.shape[0]).reshape(-1, 1, 1)
    rows, columns = _inside(row, height, padding), _inside(column, width, padding)
    found = x.permute(0, 2, 3, 1)[batch, rows.long(), columns.long()].permute(0, 3, 1, 2)
    if padding == "constant":
        outside = (row != rows) | (column != columns)
        found = found.masked_fill(outside.unsqueeze(1), value)
    return found


@op()
def resample(
    x: Tensor,
    coordinates: Tensor,
    sampling_mode: Literal["bilinear", "nearest"],
    padding_mode: Padding,
    padding_value: float,
    coordinates_mode: Coordinates,
    align_corners: bool,
) -> Tensor:
    """x (B, C, H, W) sampled at coordinates (B, h, w, 2), given as (x, y) -> (B, C, h, w).

    "nearest" first brings points into the image, then rounds halves to even, as torch's
    grid_sample does, which converts to this op.
    """
    where = coordinates.double()
    column = _pixels(where[..., 0], x.shape[-1], coordinates_mode, align_corners)
    row = _pixels(where[..., 1], x.shape[-2], coordinates_mode, align_corners)
    if sampling_mode == "nearest":
        if padding_mode != "constant":
            row = _inside(row, x.shape[-2], padding_mode)
            column = _inside(column, x.shape[-1], padding_mode)
        return _fetch(x, row.round(), column.round(), padding_mode, padding_value)
    top, left = row.floor(), column.floor()
    down, right = (row - top).unsqueeze(1), (column - left).unsqueeze(1)
    y = torch.zeros(())
    for dy, vertical in ((0, 1 - down), (1, down)):
        for dx, horizontal in ((0, 1 - right), (1, right)):
            weight = (vertical * horizontal).float()
            pixels = _fetch(x.float(), top + dy, left + dx, padding_mode, padding_value)
            y = y + weight * pixels
    return y.to(x.dtype)


@op()
def affine(
    x: Tensor,
    transform_matrix: Tensor,
    output_height: int,
    output_width: int,
    sampling_mode: Literal["bilinear", "nearest"],
    padding_mode: Padding,
    padding_value: float,
    coordinates_mode: Coordinates,
    align_corners: bool,
) -> Tensor:
    """x (B, C, H, W) sampled at x' = a0 x + a1 y + a2, y' = b0 x + b1 y + b2 of an output grid.

    transform_matrix (B or 1, 6) holds a0 a1 a2 b0 b1 b2; both grids run from -1 to 1.
    """
    grids = [
        torch.linspace(-1, 1, size, dtype=torch.float64) if size > 1 else torch.zeros(1).double()
        for size in (output_height, output_width)
    ]
    if not align_corners:  # the extremes are the outer pixels' edges
        grids = [g * (1 - 1 / g.numel()) for g in grids]
    y, x_ = torch.meshgrid(*grids, indexing="ij")
    matrix = transform_matrix.double().reshape(-1, 2, 3)
    where = torch.einsum("bij,jhw->bhwi", matrix, torch.stack([x_, y, torch.ones_like(y)]))
    where = where.expand(x.shape[0], -1, -1, -1)
    return resample(
        x, where, sampling_mode, padding_mode, padding_value, coordinates_mode, align_corners
    )
