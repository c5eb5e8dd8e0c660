"""Convolutions, pooling and normalisation."""

from collections.abc import Callable, Sequence

import numpy as np

from . import Constant, Unsayable, operator
from ._common import (
    MOST_NUMBERS,
    Tensor,
    all_axes,
    as_float,
    as_int,
    is_float,
    joined,
    mb,
    one_axis,
    rank,
    reshaped,
    shape_of,
    sliced,
)

MOST_SLICES = 4096  # of a window that MIL's pools lack
Room = list[tuple[int, int]]  # the padding before and after, for each spatial axis


def _window(
    x: Tensor, kernel: Sequence[int], *, auto_pad=b"NOTSET", ceil_mode=0, dilations=None, pads=None,
    strides=None,
) -> tuple[list[int], list[int], Room]:  # fmt: skip
    """The strides, dilations and padding of each spatial axis, from a window's attributes.

    ceil_mode: the padding includes what rounding the output size up adds at the end, without
    windows that would begin in it.
    """
    count = rank(x) - 2
    strides, dilations = list(strides or [1] * count), list(dilations or [1] * count)
    sides = list(pads) if pads is not None and auto_pad == b"NOTSET" else [0] * (2 * count)
    room = []
    for axis, (size, k) in enumerate(zip(shape_of(x)[2:], kernel, strict=True)):
        stride, reach = strides[axis], (k - 1) * dilations[axis] + 1
        before, after = sides[axis], sides[axis + count]
        _check_window(k, stride, dilations[axis])
        if auto_pad not in (b"NOTSET", b"VALID"):
            need = max(0, (-(-size // stride) - 1) * stride + reach - size)
            less, more = need // 2, need - need // 2
            before, after = (less, more) if auto_pad == b"SAME_UPPER" else (more, less)
        if ceil_mode:
            windows = -(-(size + before + after - reach) // stride) + 1
            windows -= (windows - 1) * stride >= size + before
            after = max(after, (windows - 1) * stride + reach - size - before)
        if not reach <= size + before + after <= MOST_NUMBERS:
            raise Unsayable(f"a window over {reach:,} of {size + before + after:,} places")
        room.append((before, after))
    return strides, dilations, room


def _check_window(k: int, stride: int, dilation: int) -> None:
    if min(k, stride, dilation) < 1:
        raise Unsayable(f"a window of {k}, moved by {stride} and dilated by {dilation}")


def _kernel(weight: Tensor, kernel_shape: list[int] | None) -> list[int]:
    """The sizes of a convolution's window, which `kernel_shape` only repeats."""
    sizes = shape_of(weight)[2:]
    if kernel_shape not in (None, sizes):
        raise Unsayable(f"a kernel_shape of {kernel_shape} with weights of {sizes}")
    return sizes


def _flat(room: Room) -> list[int]:
    return [side for both in room for side in both]


def _surrounded(x: Tensor, room: Room, fill: float = 0) -> Tensor:
    """Pad the spatial axes of x with a constant."""
    pad = [0, 0, 0, 0, *_flat(room)]
    return mb.pad(x=x, pad=pad, mode="constant", constant_val=np.float32(fill))


def _per_channel(values: Tensor, count: int) -> Tensor:
    """Reshape (C,) to (1, C, 1, ...), of rank `count`."""
    return reshaped(values, [1, -1, *[1] * (count - 2)])


@operator("Conv")
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, group=1, kernel_shape=None, **window
) -> Tensor:
    strides, dilations, room = _window(x, _kernel(weight, kernel_shape), **window)
    extra = {"bias": bias} if isinstance(bias, np.ndarray) else {}
    made = mb.conv(
        x=x, weight=weight, strides=strides, pad_type="custom", pad=_flat(room),
        dilations=dilations, groups=group, **extra,
    )  # fmt: skip
    return made if bias is None or extra else mb.add(x=made, y=_per_channel(bias, rank(x)))


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad=b"NOTSET", dilations=None,
    group=1, kernel_shape=None, output_padding=None, output_shape=None, pads=None, strides=None,
) -> Tensor:  # fmt: skip
    """Compute the result without padding, then crop its sides, or pad them for output_padding."""
    kernel = _kernel(weight, kernel_shape)
    count = len(kernel)
    strides, dilations = list(strides or [1] * count), list(dilations or [1] * count)
    for size, k, stride, dilation in zip(shape_of(x)[2:], kernel, strides, dilations, strict=True):
        _check_window(k, stride, dilation)
        if (size - 1) * stride + (k - 1) * dilation >= MOST_NUMBERS:
            raise Unsayable(f"{size} windows of {k}, moved by {stride} and dilated by {dilation}")
    added = list(output_padding or [0] * count)
    whole = mb.conv_transpose(
        x=x, weight=weight, strides=strides, pad_type="valid", dilations=dilations, groups=group
    )
    for axis, (old, size) in enumerate(zip(shape_of(x)[2:], shape_of(whole)[2:], strict=True)):
        before, after = (pads[axis], pads[axis + count]) if pads else (0, 0)
        if output_shape or auto_pad.startswith(b"SAME"):  # crop what exceeds the wanted size
            want = output_shape[-count:][axis] if output_shape else old * strides[axis]
            cut = size + added[axis] - want
            before = cut // 2 if auto_pad == b"SAME_UPPER" else cut - cut // 2
            after = cut - before
        after -= added[axis]
        if before > 0 or after > 0:
            whole = sliced(whole, 2 + axis, max(0, before), size - max(0, after))
        if before < 0 or after < 0:
            room = [(0, 0)] * count
            room[axis] = max(0, -before), max(0, -after)
            whole = _surrounded(whole, room)
    return whole if bias is None else mb.add(x=whole, y=_per_channel(bias, rank(x)))


# --- pools


def _pooled(
    x: Tensor, kernel: Sequence[int], strides: list[int], dilations: list[int], room: Room,
    fill: float, join: Callable,
) -> Tensor:  # fmt: skip
    """Pool with dilated windows, which MIL's pools lack: `join` reduces slices of x pairwise.

    One axis at a time, so a window of k x k takes k + k slices.
    """
    if sum(kernel) > MOST_SLICES:
        raise Unsayable(f"a window of {' x '.join(map(str, kernel))}, each a slice")
    x = _surrounded(x, room, fill)
    for axis, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        reach = int(x.shape[axis]) - (k - 1) * dilation  # the first values of windows lie before it
        places = [sliced(x, axis, d, d + reach, stride) for d in range(0, k * dilation, dilation)]
        x = joined(places, join)
    return x


@operator("MaxPool")
def max_pool(x: Tensor, *, kernel_shape, storage_order=0, outputs: int = 1, **window) -> Tensor:
    if outputs > 1:
        raise Unsayable("the indices of the largest values")
    if not is_float(x):
        return as_int(max_pool(as_float(x), kernel_shape=kernel_shape, **window))
    strides, dilations, room = _window(x, kernel_shape, **window)
    if set(dilations) != {1}:
        return _pooled(x, kernel_shape, strides, dilations, room, -np.inf, mb.maximum)
    return mb.max_pool(
        x=x, kernel_sizes=list(kernel_shape), strides=strides, pad_type="custom", pad=_flat(room)
    )


@operator("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape, auto_pad=b"NOTSET", count_include_pad=0, pads=None, **window
) -> Tensor:
    """Average. Padding that counts is added first; what ceil_mode adds never counts."""
    strides, dilations, room = _window(x, kernel_shape, auto_pad=auto_pad, pads=pads, **window)
    if count_include_pad and pads is not None and auto_pad == b"NOTSET":
        half = len(pads) // 2
        counted = list(zip(pads[:half], pads[half:], strict=True))
        x = _surrounded(x, counted)
        room = [(b - p, a - q) for (b, a), (p, q) in zip(room, counted, strict=True)]
    if set(dilations) != {1}:
        ones = mb.add(x=mb.mul(x=x, y=np.float32(0)), y=np.float32(1))
        total, count = (
            _pooled(values, kernel_shape, strides, dilations, room, 0, mb.add)
            for values in (x, ones)
        )
        return mb.real_div(x=total, y=count)
    return mb.avg_pool(
        x=x, kernel_sizes=list(kernel_shape), strides=strides, pad_type="custom", pad=_flat(room),
        exclude_padding_from_average=not (count_include_pad and auto_pad != b"NOTSET"),
    )  # fmt: skip


@operator("LpPool")
def lp_pool(x: Tensor, *, kernel_shape, p=2, **window) -> Tensor:
    """The p-th root of the sum of |x|^p over each window; zero padding adds nothing."""
    strides, dilations, room = _window(x, kernel_shape, **window)
    powers = mb.pow(x=mb.abs(x=x), y=np.float32(p))
    total = _pooled(powers, kernel_shape, strides, dilations, room, 0, mb.add)
    return mb.pow(x=total, y=np.float32(1 / p))


def _over_all(x: Tensor, reduce: Callable) -> Tensor:
    """Reduce all spatial axes with one of MIL's reductions."""
    return reduce(x=x, axes=list(range(2, rank(x))), keep_dims=True)


operator("GlobalAveragePool")(lambda x: _over_all(x, mb.reduce_mean))
operator("GlobalMaxPool")(lambda x: _over_all(x, mb.reduce_max))


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p=2) -> Tensor:
    total = _over_all(mb.pow(x=mb.abs(x=x), y=np.float32(p)), mb.reduce_sum)
    return mb.pow(x=total, y=np.float32(1 / p))


# --- norms


def _scaled(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """x * scale + bias, per channel."""
    return mb.add(x=mb.mul(x=x, y=_per_channel(scale, rank(x))), y=_per_channel(bias, rank(x)))


def _standard(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise x to mean 0 and variance 1 over `axes`; also return its mean and 1 / deviation."""
    mean = mb.reduce_mean(x=x, axes=axes, keep_dims=True)
    low = mb.sub(x=x, y=mean)
    variance = mb.reduce_mean(x=mb.mul(x=low, y=low), axes=axes, keep_dims=True)
    scale = mb.rsqrt(x=variance, epsilon=np.float32(epsilon))
    return mb.mul(x=low, y=scale), mean, scale


@operator("BatchNormalization")
def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon=1e-5,
    momentum=0.9, training_mode=0, spatial=1, outputs: int = 1,
) -> Tensor:  # fmt: skip
    if training_mode or outputs > 1:
        raise Unsayable("training")
    known = all(isinstance(v, np.ndarray) for v in (scale, bias, mean, variance))
    if known and rank(x) in (3, 4, 5):
        names = {"mean": mean, "variance": variance, "gamma": scale, "beta": bias}
        return mb.batch_norm(x=x, epsilon=np.float32(epsilon), **names)
    mean, variance, scale, bias = (_per_channel(v, rank(x)) for v in (mean, variance, scale, bias))
    root = mb.rsqrt(x=mb.add(x=variance, y=np.float32(epsilon)), epsilon=np.float32(0))
    return mb.add(x=mb.mul(x=mb.sub(x=x, y=mean), y=mb.mul(x=root, y=scale)), y=bias)


@operator("InstanceNormalization", since=6)
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon=1e-5) -> Tensor:
    if isinstance(scale, np.ndarray) and isinstance(bias, np.ndarray) and rank(x) in (3, 4):
        return mb.instance_norm(x=x, gamma=scale, beta=bias, epsilon=np.float32(epsilon))
    even, _, _ = _standard(x, list(range(2, rank(x))), epsilon)
    return _scaled(even, scale, bias)


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis=-1, epsilon=1e-5, stash_type=1,
    outputs: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    axes = list(range(one_axis(axis, rank(x)), rank(x)))
    shape = tuple(shape_of(x)[axis] for axis in axes)
    known = all(
        isinstance(v, np.ndarray) and v.shape == shape for v in (scale, bias) if v is not None
    )
    if known and outputs == 1:
        extra = {} if bias is None else {"beta": bias}
        return (mb.layer_norm(x=x, axes=axes, gamma=scale, epsilon=np.float32(epsilon), **extra),)
    even, mean, deviation = _standard(x, axes, epsilon)
    scaled = mb.mul(x=even, y=scale)
    return (scaled if bias is None else mb.add(x=scaled, y=bias), mean, deviation)[:outputs]


@operator("GroupNormalization", since=21)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon=1e-5, stash_type=1
) -> Tensor:
    grouped = reshaped(x, [int(x.shape[0]), num_groups, -1])
    even, _, _ = _standard(grouped, [2], epsilon)
    return _scaled(reshaped(even, shape_of(x)), scale, bias)


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes=None) -> Tensor:
    """Composed here, since ONNX's own definition takes a difference of squares: bad in fp16."""
    return _standard(x, [0, 2, 3] if axes is None else all_axes(axes, rank(x)), 0)[0]


operator("LRN")(
    lambda x, *, size, alpha=1e-4, beta=0.75, bias=1.0: mb.local_response_norm(
        x=x, size=size, alpha=np.float32(alpha), beta=np.float32(beta), k=np.float32(bias)
    )
)


@operator("LpNormalization")
def lp_normalization(x: Tensor, *, axis=-1, p=2) -> Tensor:
    """x divided by its p-norm; zero stays zero."""
    if p not in (1, 2):
        raise Unsayable(f"a norm of {p}")
    size = mb.abs(x=x) if p == 1 else mb.mul(x=x, y=x)
    length = mb.reduce_sum(x=size, axes=[axis], keep_dims=True)
    length = length if p == 1 else mb.sqrt(x=length)
    none = mb.cast(x=mb.equal(x=length, y=np.float32(0)), dtype="fp32")
    return mb.real_div(x=x, y=mb.add(x=length, y=none))


@operator("Dropout")
def dropout(
    x: Tensor, ratio: Tensor | None = None, training_mode: Constant | None = None, *,
    outputs: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The identity; training mode is refused."""
    if training_mode is not None and bool(training_mode):
        raise Unsayable("training")
    kept = (mb.fill(shape=shape_of(x), value=True),) if outputs > 1 else ()
    return (mb.identity(x=x), *kept)
