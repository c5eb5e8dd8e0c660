"""Convolutions, pools and norms."""

import numpy as np

from . import Constant, Unsayable, operator
from ._common import (
    Tensor,
    all_axes,
    as_float,
    as_int,
    is_float,
    joined,
    mb,
    rank,
    reshaped,
    sliced,
)


def _window(
    x: Tensor, kernel, strides, pads, dilations, auto_pad: bytes
) -> tuple[list, list, list]:
    """Strides, dilations and the room [(before, after)] of each spatial axis, all of them known."""
    count = rank(x) - 2
    strides, dilations = list(strides or [1] * count), list(dilations or [1] * count)
    if auto_pad in (b"NOTSET", b"VALID"):
        flat = [0] * (2 * count) if pads is None or auto_pad == b"VALID" else list(pads)
        return strides, dilations, list(zip(flat[:count], flat[count:], strict=True))
    room = []
    for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        reach = (k - 1) * dilation + 1
        need = max(0, (-(-int(size) // stride) - 1) * stride + reach - int(size))
        less, more = need // 2, need - need // 2
        room.append((less, more) if auto_pad == b"SAME_UPPER" else (more, less))
    return strides, dilations, room


def _flat(room: list[tuple[int, int]]) -> list[int]:
    return [side for both in room for side in both]


@operator("Conv")
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad=b"NOTSET", dilations=None,
    group=1, kernel_shape=None, pads=None, strides=None,
) -> Tensor:  # fmt: skip
    kernel = [int(size) for size in weight.shape[2:]]
    strides, dilations, room = _window(x, kernel, strides, pads, dilations, auto_pad)
    extra = {"bias": bias} if isinstance(bias, np.ndarray) else {}
    made = mb.conv(
        x=x, weight=weight, strides=strides, pad_type="custom", pad=_flat(room),
        dilations=dilations, groups=group, **extra,
    )  # fmt: skip
    return made if bias is None or extra else mb.add(x=made, y=_per_channel(bias, rank(x)))


def _per_channel(values: Tensor, count: int) -> Tensor:
    """(C,) as (1, C, 1, ...)."""
    shape = [1, -1, *[1] * (count - 2)]
    return values.reshape(shape) if isinstance(values, np.ndarray) else reshaped(values, shape)


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad=b"NOTSET", dilations=None,
    group=1, kernel_shape=None, output_padding=None, output_shape=None, pads=None, strides=None,
) -> Tensor:  # fmt: skip
    """The whole of it is made, then its sides are cut, or grow where there is room to add."""
    count = rank(x) - 2
    kernel = [int(size) for size in weight.shape[2:]]
    strides, dilations = list(strides or [1] * count), list(dilations or [1] * count)
    added = list(output_padding or [0] * count)
    whole = mb.conv_transpose(
        x=x, weight=weight, strides=strides, pad_type="valid", dilations=dilations, groups=group
    )
    for axis in range(count):
        size = (
            (int(x.shape[2 + axis]) - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        )
        want = int(x.shape[2 + axis]) * strides[axis] if auto_pad.startswith(b"SAME") else None
        want = output_shape[-count:][axis] if output_shape else want
        if want is None:
            before, after = (pads[axis], pads[axis + count]) if pads else (0, 0)
        else:  # as much is cut as is too much
            cut = size + added[axis] - want
            before = cut // 2 if auto_pad == b"SAME_UPPER" else cut - cut // 2
            after = cut - before
        whole = _trimmed(whole, 2 + axis, before, after - added[axis])
    return whole if bias is None else mb.add(x=whole, y=_per_channel(bias, rank(x)))


def _trimmed(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    """x without so much of its sides; what is negative is zeros more."""
    if before > 0 or after > 0:
        x = sliced(x, axis, max(0, before), int(x.shape[axis]) - max(0, after))
    if before < 0 or after < 0:
        room = np.zeros((rank(x), 2), np.int32)
        room[axis] = max(0, -before), max(0, -after)
        x = mb.pad(x=x, pad=room.reshape(-1), mode="constant", constant_val=np.float32(0))
    return x


# --- pools


def _overhang(x: Tensor, kernel, strides, dilations, room, ceil_mode: int) -> list[tuple[int, int]]:
    """The room with what rounding up adds at the end; windows that begin beyond it are none."""
    if not ceil_mode:
        return list(room)
    wider = []
    for size, k, stride, dilation, (before, after) in zip(
        x.shape[2:], kernel, strides, dilations, room, strict=True
    ):
        reach, length = (k - 1) * dilation + 1, int(size) + before + after
        count = -(-(length - reach) // stride) + 1
        if (count - 1) * stride >= int(size) + before:
            count -= 1
        wider.append((before, max(after, (count - 1) * stride + reach - int(size) - before)))
    return wider


def _pooled(x: Tensor, kernel, strides, dilations, room, fill: float, join) -> Tensor:
    """What `join`, one of MIL's operators of two, makes of each window; for dilated windows.

    An axis at a time, so that a window of k x k takes k + k slices.
    """
    sides = [(0, 0), (0, 0), *room]
    x = mb.pad(x=x, pad=_flat(sides), mode="constant", constant_val=np.float32(fill))
    for axis, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        reach = int(x.shape[axis]) - (k - 1) * dilation  # the first values of windows lie before it
        places = [sliced(x, axis, d, d + reach, stride) for d in range(0, k * dilation, dilation)]
        x = joined(places, join)
    return x


@operator("MaxPool")
def max_pool(
    x: Tensor, *, kernel_shape, auto_pad=b"NOTSET", ceil_mode=0, dilations=None, pads=None,
    storage_order=0, strides=None, outputs: int = 1,
) -> Tensor:  # fmt: skip
    if outputs > 1:
        raise Unsayable("the indices of the largest values")
    if not is_float(x):
        how = {"dilations": dilations, "pads": pads, "strides": strides, "ceil_mode": ceil_mode}
        return as_int(max_pool(as_float(x), kernel_shape=kernel_shape, auto_pad=auto_pad, **how))
    strides, dilations, room = _window(x, kernel_shape, strides, pads, dilations, auto_pad)
    room = _overhang(x, kernel_shape, strides, dilations, room, ceil_mode)
    if set(dilations) != {1}:
        return _pooled(x, kernel_shape, strides, dilations, room, -np.inf, mb.maximum)
    return mb.max_pool(
        x=x, kernel_sizes=list(kernel_shape), strides=strides, pad_type="custom", pad=_flat(room)
    )


@operator("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape, auto_pad=b"NOTSET", ceil_mode=0, count_include_pad=0,
    dilations=None, pads=None, strides=None,
) -> Tensor:  # fmt: skip
    """Padding that counts is made first; what rounding up adds never counts."""
    strides, dilations, room = _window(x, kernel_shape, strides, pads, dilations, auto_pad)
    room = _overhang(x, kernel_shape, strides, dilations, room, ceil_mode)
    if count_include_pad and pads is not None and auto_pad == b"NOTSET":
        half = len(pads) // 2
        own = list(zip(pads[:half], pads[half:], strict=True))
        x = mb.pad(
            x=x, pad=_flat([(0, 0), (0, 0), *own]), mode="constant", constant_val=np.float32(0)
        )
        room = [(b - p, a - q) for (b, a), (p, q) in zip(room, own, strict=True)]
    if set(dilations) != {1}:
        return _dilated_mean(x, kernel_shape, strides, dilations, room)
    return mb.avg_pool(
        x=x, kernel_sizes=list(kernel_shape), strides=strides, pad_type="custom", pad=_flat(room),
        exclude_padding_from_average=not (count_include_pad and auto_pad != b"NOTSET"),
    )  # fmt: skip


def _dilated_mean(x: Tensor, kernel, strides, dilations, room) -> Tensor:
    ones = mb.add(x=mb.mul(x=x, y=np.float32(0)), y=np.float32(1))
    total, count = (
        _pooled(values, kernel, strides, dilations, room, 0, mb.add) for values in (x, ones)
    )
    return mb.real_div(x=total, y=count)


@operator("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape, auto_pad=b"NOTSET", ceil_mode=0, dilations=None, p=2, pads=None,
    strides=None,
) -> Tensor:  # fmt: skip
    """The root of the sum of powers: zeros around add nothing to it."""
    strides, dilations, room = _window(x, kernel_shape, strides, pads, dilations, auto_pad)
    room = _overhang(x, kernel_shape, strides, dilations, room, ceil_mode)
    powers = mb.pow(x=mb.abs(x=x), y=np.float32(p))
    total = _pooled(powers, kernel_shape, strides, dilations, room, 0, mb.add)
    return mb.pow(x=total, y=np.float32(1 / p))


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return mb.reduce_mean(x=x, axes=list(range(2, rank(x))), keep_dims=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return mb.reduce_max(x=x, axes=list(range(2, rank(x))), keep_dims=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p=2) -> Tensor:
    powers = mb.pow(x=mb.abs(x=x), y=np.float32(p))
    total = mb.reduce_sum(x=powers, axes=list(range(2, rank(x))), keep_dims=True)
    return mb.pow(x=total, y=np.float32(1 / p))


# --- norms


def _standard(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 over axes; its mean, and one over its deviation."""
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
    return mb.add(x=mb.mul(x=even, y=_per_channel(scale, rank(x))), y=_per_channel(bias, rank(x)))


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis=-1, epsilon=1e-5, stash_type=1,
    outputs: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    axes = list(range(axis % rank(x), rank(x)))
    shape = tuple(int(x.shape[i]) for i in axes)
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
    even = reshaped(even, [int(size) for size in x.shape])
    return mb.add(x=mb.mul(x=even, y=_per_channel(scale, rank(x))), y=_per_channel(bias, rank(x)))


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes=None) -> Tensor:
    axes = [0, 2, 3] if axes is None else all_axes(axes, rank(x))
    return _standard(x, axes, 0)[0]


@operator("LRN")
def lrn(x: Tensor, *, size: int, alpha=1e-4, beta=0.75, bias=1.0) -> Tensor:
    return mb.local_response_norm(
        x=x, size=size, alpha=np.float32(alpha), beta=np.float32(beta), k=np.float32(bias)
    )


@operator("LpNormalization")
def lp_normalization(x: Tensor, *, axis=-1, p=2) -> Tensor:
    """x by its length; what has none stays zero."""
    size = mb.abs(x=x) if p == 1 else mb.mul(x=x, y=x)
    length = mb.reduce_sum(x=size, axes=[axis], keep_dims=True)
    length = length if p == 1 else mb.sqrt(x=length)
    none = mb.cast(x=mb.equal(x=length, y=np.float32(0)), dtype="fp32")
    return mb.real_div(x=x, y=mb.add(x=length, y=none))


@operator("Dropout")
def dropout(
    x: Tensor, ratio: Tensor | None = None, training_mode: Constant | None = None, *, seed=0,
    outputs: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Nothing, outside of training."""
    if training_mode is not None and bool(training_mode):
        raise Unsayable("training")
    kept = (mb.fill(shape=[int(s) for s in x.shape], value=True),) if outputs > 1 else ()
    return (mb.identity(x=x), *kept)
