"""Resize: a linear map of each axis, and so a product with a constant matrix per axis. What samples
at coordinates is here as well.

Integer factors of the nearest kind and those bilinear ones that MIL has become one op. All other
kinds (cubic, antialiased, cropped, with any of ONNX's coordinates) become two matrix products.

Reference: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from . import Constant, Unsayable, operator
from ._common import Tensor, all_axes, along, check_constant, mb, rank, reshaped, select

ROUNDINGS: dict[bytes, Callable[[np.ndarray], np.ndarray]] = {
    b"round_prefer_floor": lambda x: np.ceil(x - 0.5),
    b"round_prefer_ceil": lambda x: np.floor(x + 0.5),
    b"floor": np.floor,
    b"ceil": np.ceil,
}

#: ONNX's coordinates that `resize_bilinear` has, where sizes are whole multiples of the scale.
SAMPLINGS = {b"half_pixel": "UNALIGN_CORNERS", b"align_corners": "STRICT_ALIGN_CORNERS"}


@operator("Resize", since=11)
def resize(
    x: Tensor, roi: Constant | None = None, scales: Constant | None = None,
    sizes: Constant | None = None, *, antialias=0, axes=None,
    coordinate_transformation_mode=b"half_pixel", cubic_coeff_a=-0.75, exclude_outside=0,
    extrapolation_value=0.0, keep_aspect_ratio_policy=b"stretch", mode=b"nearest",
    nearest_mode=b"round_prefer_floor",
) -> Tensor:  # fmt: skip
    chosen, where = all_axes(axes, rank(x)), coordinate_transformation_mode
    old = [int(x.shape[axis]) for axis in chosen]
    cut = where == b"tf_crop_and_resize"
    ends = np.asarray(roi).reshape(2, -1).T if cut else np.tile([0.0, 1.0], (len(chosen), 1))
    factors, new = _sizes(old, scales, sizes, keep_aspect_ratio_policy, ends)
    check_constant(max(new))
    # Which is nearest is decided in single precision, as runtimes do: 8 / 1.6 is 5 there.
    number = np.float32 if mode == b"nearest" else np.float64
    at = {
        axis: _coordinates(old[i], new[i], number(factors[i]), where, ends[i])
        for i, axis in enumerate(chosen)
        if cut or new[i] != old[i] or factors[i] != 1
    }
    if mode == b"nearest":
        result = _nearest(x, {a: ROUNDINGS[nearest_mode](places) for a, places in at.items()})
    elif mode == b"linear" and not (antialias or exclude_outside) and _is_plain(x, at, where):
        height, width = (len(at[axis]) if axis in at else int(x.shape[axis]) for axis in (2, 3))
        result = mb.resize_bilinear(
            x=x, target_size_height=height, target_size_width=width, sampling_mode=SAMPLINGS[where]
        )
    else:
        kernel, width = (_linear, 1) if mode == b"linear" else (partial(_cubic, a=cubic_coeff_a), 2)
        wider = {axis: min(1, factors[i]) if antialias else 1 for i, axis in enumerate(chosen)}
        result = x
        for axis, places in at.items():
            size, exclude = int(x.shape[axis]), bool(exclude_outside)
            matrix = _weights(places, size, kernel, width, wider[axis], exclude)
            result = along(result, axis, matrix)
    return _filled(result, x, at, extrapolation_value) if cut else mb.identity(x=result)


def _sizes(
    old: list[int], scales, sizes, policy: bytes, ends: np.ndarray
) -> tuple[list[float], list[int]]:
    """The scale and the new size of each axis."""
    if sizes is None or not np.size(sizes):
        scales = [float(scale) for scale in scales]
        parts = [float(end - start) for start, end in ends]
        sized = zip(old, scales, parts, strict=True)
        return scales, [int(np.floor(size * scale * part)) for size, scale, part in sized]
    out = [int(size) for size in sizes]
    scales = [after / before for after, before in zip(out, old, strict=True)]
    if policy != b"stretch":
        one = min(scales) if policy == b"not_larger" else max(scales)
        scales = [one] * len(old)
        out = [int(np.floor(one * size + 0.5)) for size in old]
    return scales, out


def _coordinates(size: int, out: int, scale: float | np.floating, where: bytes, ends) -> np.ndarray:
    """The coordinates (out,) of the new elements of an axis among the old, in scale's precision."""
    x, length = np.arange(out, dtype=np.asarray(scale).dtype), scale * size
    middle = (x + 0.5) / scale - 0.5
    if where == b"asymmetric":
        return x / scale
    if where == b"align_corners":
        return x * (size - 1) / (length - 1) if length != 1 else x * 0
    if where == b"pytorch_half_pixel":
        return middle if length > 1 else x * 0
    if where == b"half_pixel_symmetric":
        return size / 2 * (1 - out / length) + middle
    if where == b"tf_crop_and_resize":
        start, end = (float(v) for v in ends)
        if out > 1:
            return start * (size - 1) + x * (end - start) * (size - 1) / (out - 1)
        return np.full(out, 0.5 * (start + end) * (size - 1))
    return middle


def _nearest(x: Tensor, places: dict[int, np.ndarray]) -> Tensor:
    """Nearest: one op if rows and columns are repeated an integer number of times, else gathers."""
    indices = {
        axis: np.clip(at, 0, int(x.shape[axis]) - 1).astype(np.int32) for axis, at in places.items()
    }
    times = {axis: len(at) // int(x.shape[axis]) for axis, at in indices.items()}
    even = all(
        len(at) and np.array_equal(at, np.arange(len(at)) // max(1, times[axis]))
        for axis, at in indices.items()
    )
    if even and rank(x) == 4 and indices and set(indices) <= {2, 3}:
        return mb.upsample_nearest_neighbor(
            x=x, scale_factor_height=times.get(2, 1), scale_factor_width=times.get(3, 1)
        )
    for axis, at in indices.items():
        x = mb.gather(x=x, indices=at, axis=axis)
    return x


def _is_plain(x: Tensor, at: dict[int, np.ndarray], where: bytes) -> bool:
    """Whether MIL's bilinear op computes it: rows and columns of an image, scaled by out / size."""
    whole = all(
        np.allclose(places, _coordinates(size, len(places), len(places) / size, where, (0, 1)))
        for axis, places in at.items()
        if (size := int(x.shape[axis]))
    )
    return where in SAMPLINGS and rank(x) == 4 and set(at) <= {2, 3} and bool(at) and whole


# --- by a matrix


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weights(
    at: np.ndarray, size: int, kernel: Callable, width: int, scale: float, exclude: bool
) -> np.ndarray:
    """The matrix (out, size) of one axis; beyond the ends the old elements at the ends count.

    width: the kernel's radius of support.
    """
    reach = int(np.ceil(width / scale)) + 1
    check_constant(len(at), max(size, 2 * reach + 1))
    places = np.floor(at).astype(int)[:, None] + np.arange(-reach, reach + 1)  # (out, near)
    weights = kernel((places - at[:, None]) * scale)
    if exclude:
        weights = np.where((places < 0) | (places >= size), 0, weights)
    weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((len(at), size))
    rows = np.broadcast_to(np.arange(len(at))[:, None], places.shape)
    np.add.at(matrix, (rows, places.clip(0, size - 1)), weights)
    return matrix.astype(np.float32)


def _filled(x: Tensor, old: Tensor, at: dict[int, np.ndarray], value: float) -> Tensor:
    """Put `value` into x at coordinates that lie outside of the old tensor."""
    outside = np.zeros([1] * rank(x), bool)
    for axis, places in at.items():
        beyond = (places < 0) | (places > int(old.shape[axis]) - 1)
        outside = outside | beyond.reshape([-1 if a == axis else 1 for a in range(rank(x))])
    if not outside.any():
        return mb.identity(x=x)
    return select(outside, np.float32(value), x)


# --- by coordinates


SAMPLING = {b"bilinear": "bilinear", b"linear": "bilinear", b"nearest": "nearest"}
PADDING = {b"zeros": "constant", b"border": "border", b"reflection": "reflection"}


@operator("GridSample", since=16)
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners=0, mode=b"linear", padding_mode=b"zeros"
) -> Tensor:
    """Sample x (B, C, H, W) at the coordinates of grid (B, H', W', 2), from -1 to 1."""
    if rank(x) != 4 or mode not in SAMPLING:
        raise Unsayable(f"{mode.decode()} sampling of rank {rank(x)}")
    if padding_mode == b"reflection" and not align_corners:
        raise Unsayable("a reflection at the edges of pixels; MIL's is at their middles")
    return mb.resample(
        x=x, coordinates=grid, sampling_mode=SAMPLING[mode], padding_mode=PADDING[padding_mode],
        padding_value=np.float32(0), coordinates_mode="normalized_minus_one_to_one",
        align_corners=bool(align_corners),
    )  # fmt: skip


@operator("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Constant, *, align_corners=0) -> Tensor:
    """The coordinates (N, ..., d) to sample at: theta (N, d, d + 1) times each place of the output.

    Written here since ONNX's own definition takes away a batch of 1.
    """
    batch, _, *sizes = (int(n) for n in size)
    check_constant(len(sizes) + 1, *sizes)
    if align_corners and 1 in sizes:
        raise Unsayable("aligned corners of an axis of 1, of which every runtime has its own idea")
    axes = [
        np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / n - 1 for n in sizes
    ]
    places = np.meshgrid(*axes, indexing="ij")[::-1]  # x comes before y
    rows = np.stack([*places, np.ones_like(places[0])], -1).reshape(-1, len(sizes) + 1)
    made = mb.linear(x=theta, weight=rows.astype(np.float32))  # (N, d, places)
    return reshaped(mb.transpose(x=made, perm=[0, 2, 1]), [batch, *sizes, len(sizes)])


@operator("RoiAlign", since=10)
def roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, *, coordinate_transformation_mode=b"half_pixel",
    mode=b"avg", output_height=1, output_width=1, sampling_ratio=0, spatial_scale=1.0, since: int,
) -> Tensor:  # fmt: skip
    """Average the bins (R, C, h, w) of regions of x (N, C, H, W): for each region a product with a
    matrix of each axis, as of Resize.

    rois (R, 4): x and y of the corners; batch (R,): their images.
    """
    if mode != b"avg":
        raise Unsayable(f"the {mode.decode()} of a region")
    if sampling_ratio < 1:
        raise Unsayable(
            "as many samples as a region is large: export with a sampling_ratio of 1 or more"
        )
    half = since > 10 and coordinate_transformation_mode == b"half_pixel"
    rois = mb.mul(x=rois, y=np.float32(spatial_scale))
    rois = mb.sub(x=rois, y=np.float32(0.5)) if half else rois
    left, top, right, bottom = mb.split(x=rois, num_splits=4, axis=1)  # (R, 1)
    rows = _bins(top, bottom, int(x.shape[2]), output_height, sampling_ratio, half)
    columns = _bins(left, right, int(x.shape[3]), output_width, sampling_ratio, half)
    x = mb.gather(x=x, indices=batch, axis=0) if int(x.shape[0]) > 1 else x  # (R, C, H, W)
    made = mb.matmul(x=mb.expand_dims(x=rows, axes=[1]), y=x)  # (R, C, h, W)
    return mb.matmul(x=made, y=mb.expand_dims(x=columns, axes=[1]), transpose_y=True)


def _bins(start: Tensor, end: Tensor, size: int, bins: int, samples: int, half: bool) -> Tensor:
    """The matrices (R, bins, size) that average the samples of each bin of an axis of `size`.

    A sample that is more than a pixel outside counts as 0; nearer ones are moved to the edge.
    """
    check_constant(bins * samples, size)
    length = mb.sub(x=end, y=start)
    length = length if half else mb.maximum(x=length, y=np.float32(1))
    steps = (np.arange(bins * samples, dtype=np.float32)[None] + 0.5) / (bins * samples)
    at = mb.add(x=start, y=mb.mul(x=length, y=steps))  # (R, bins * samples)
    far = mb.abs(x=mb.sub(x=at, y=np.float32((size - 1) / 2)))  # from the middle
    inside = mb.cast(x=mb.less_equal(x=far, y=np.float32((size + 1) / 2)), dtype="fp32")
    at = mb.clip(x=at, alpha=np.float32(0), beta=np.float32(size - 1))
    places = np.arange(size, dtype=np.float32)
    apart = mb.abs(x=mb.sub(x=mb.expand_dims(x=at, axes=[2]), y=places[None, None]))
    weights = mb.relu(x=mb.sub(x=np.float32(1), y=apart))
    weights = mb.mul(x=weights, y=mb.expand_dims(x=inside, axes=[2]))
    weights = mb.reshape(x=weights, shape=[int(at.shape[0]), bins, samples, size])
    return mb.reduce_mean(x=weights, axes=[2])
