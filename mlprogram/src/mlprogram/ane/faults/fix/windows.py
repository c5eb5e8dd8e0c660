"""Exact rewrites of ops over windows: convolutions, pools; and of a norm over a volume."""

from typing import Any

from mlprogram.ane.faults.fix.edit import Typed
from mlprogram.ane.faults.fix.mend import At, Mend, Rewrite, Unmended
import numpy as np
import torch

#: Numbers whose products and sums half precision holds.
MODEST = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def padded_before(at: At) -> Mend:
    """A convolution or average that pads -> of an input that a pad op has padded with zeros."""
    x, pads = at.value("x"), at.setting("pad")
    if at.setting("pad_type", "valid") != "custom" or None in x.type.shape[2:]:
        raise Unmended("its padding is not in numbers, or a size is open")
    wide = _padded(at, x, pads)
    nothing = np.zeros(len(pads), np.int32)
    return _summed(at, at.again(x=wide, pad=nothing, pad_type="valid"))


def _padded(at: At, x: Typed, pads: list[int]) -> Typed:
    pairs = zip(x.type.sizes[2:], pads[::2], pads[1::2], strict=True)
    shape = (*x.type.shape[:2], *(size + before + after for size, before, after in pairs))
    given = {"x": x, "pad": np.array([0, 0, 0, 0, *pads], np.int32), "mode": "constant",
             "constant_val": 0.0}  # fmt: skip
    return at.make.op("pad", given, shape=shape)


def pool_same_lower(at: At) -> Mend:
    """A pool padded as same_lower -> with the same padding in numbers."""
    sizes = at.value("x").type.shape[2:]
    if None in sizes:
        raise Unmended("a size is open")
    kernel = at.setting("kernel_sizes")
    strides = at.setting("strides") or [1] * len(kernel)
    pads: list[int] = []
    for size, window, by in zip(at.value("x").type.sizes[2:], kernel, strides, strict=True):
        total = max(0, (-(-size // by) - 1) * by + window - size)
        pads += [total - total // 2, total // 2]
    return _summed(at, at.again(pad=np.array(pads, np.int32), pad_type="custom"))


def max_pool_padding(at: At) -> Mend:
    """A max_pool that rounds its count of windows up -> padded at the end for as many as declared,
    which leaves out one that would lie in the padding."""
    x, made = at.value("x"), at.type.shape[2:]
    if None in x.type.shape[2:] or None in made or at.setting("pad_type", "valid") != "custom":
        raise Unmended("its padding is not in numbers, or a size is open")
    kernel, pads = at.setting("kernel_sizes"), [*at.setting("pad")]
    strides = at.setting("strides") or [1] * len(kernel)
    before = pads[::2]
    for axis, size in enumerate(x.type.sizes[2:]):
        windows = at.type.sizes[2:][axis]
        needed = (windows - 1) * strides[axis] + kernel[axis] - size - before[axis]
        pads[2 * axis + 1] = max(0, needed)
    result = at.again(pad=np.array(pads, np.int32), ceil_mode=False)
    pool = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}[len(kernel)]
    own = at.setting("pad")
    if own[::2] != own[1::2]:
        raise Unmended("it is padded unevenly")

    def meant(x):
        return pool(x, kernel, strides, before, 1, True)

    return at.mend(result, [x], meant, values={x.name: MODEST})


def average_overhang(at: At) -> Mend:
    """An average over windows that hang over the padded input -> over the elements within it."""
    x, pads, made = at.value("x"), [*(at.setting("pad") or [])], at.type.shape[2:]
    kernel = at.setting("kernel_sizes")
    strides, rank = at.setting("strides") or [1] * len(kernel), len(kernel)
    kind = at.setting("pad_type", "valid")
    pads = [0] * 2 * rank if kind == "valid" or not pads else pads
    if None in x.type.shape[2:] or None in made or kind not in ("valid", "custom"):
        raise Unmended("its padding is not in numbers, or a size is open")
    if pads[::2] != pads[1::2]:
        raise Unmended("it is padded unevenly")
    wide: list[int] = []
    shares: list[np.ndarray] = []
    for axis, (size, count) in enumerate(zip(x.type.sizes[2:], at.type.sizes[2:], strict=True)):
        begins = np.arange(count) * strides[axis]
        whole = size + pads[2 * axis] + pads[2 * axis + 1]
        over = max(0, int(begins[-1]) + kernel[axis] - whole)
        wide += [pads[2 * axis], pads[2 * axis + 1] + over]
        shares.append(kernel[axis] / (np.minimum(begins + kernel[axis], whole) - begins))
    factor = shares[0]
    for share in shares[1:]:
        factor = factor[..., None] * share
    nothing = {"pad": np.zeros(2 * rank, np.int32), "pad_type": "valid", "ceil_mode": False}
    mean = at.again(x=_padded(at, x, wide), **nothing)
    result = at.make.op("mul", {"x": mean, "y": factor[None, None]})
    pool = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d,
            3: torch.nn.functional.avg_pool3d}[rank]  # fmt: skip

    def meant(x):
        return pool(x, kernel, strides, pads[::2], True)

    return at.mend(result, [x], meant, values={x.name: MODEST}, sums=True)


def conv_transpose_uneven(at: At) -> Mend:
    """A transposed convolution that is cut unevenly -> uncut, and sliced."""
    pads, shape = at.setting("pad"), at.type.shape
    if at.setting("pad_type", "valid") != "custom" or None in shape:
        raise Unmended("its padding is not in numbers, or a size is open")
    if "output_shape" in at.operation.inputs:
        raise Unmended("it is asked for a size")
    given: dict[str, Any] = {key: at.value(key) for key in at.operation.inputs}
    given |= {"pad": np.zeros(len(pads), np.int32), "pad_type": "valid"}
    pairs = zip(at.type.sizes[2:], pads[::2], pads[1::2], strict=True)
    full = (*at.type.sizes[:2], *(size + before + after for size, before, after in pairs))
    whole = at.make.op("conv_transpose", given, at.type.dtype, full)
    begin = np.array([0, 0, *pads[::2]], np.int32)
    end = begin + np.array(at.type.sizes, np.int32)
    cut = {"x": whole, "begin": begin, "end": end}
    return _summed(at, at.make.op("slice_by_index", cut, shape=shape))


def instance_norm_volume(at: At) -> Mend:
    """An instance_norm of (N, C, D, H, W) -> of (N, C, D * H, W), and back."""
    x = at.value("x")
    if None in x.type.shape:
        raise Unmended("a size is open")
    n, c, depth, height, width = x.type.sizes
    flat, shape = (n, c, depth * height, width), np.array(x.type.sizes, np.int32)
    volume = at.make.op("reshape", {"x": x, "shape": np.array(flat, np.int32)}, shape=flat)
    given = {key: at.value(key) for key in at.operation.inputs} | {"x": volume}
    norm = at.make.op("instance_norm", given, at.type.dtype, flat)
    result = at.make.op("reshape", {"x": norm, "shape": shape}, shape=x.type.shape)
    return _summed(at, result)


def _summed(at: At, result: Typed) -> Mend:
    values = {at.value(key).name: MODEST for key in at.operation.inputs}
    return at.as_described(result, values=values, sums=True)


REWRITES: dict[str, Rewrite] = {
    "conv-corner": padded_before, "avg-pool-seven": padded_before,
    "pool-same-lower": pool_same_lower, "max-pool-padding": max_pool_padding,
    "conv-transpose-uneven": conv_transpose_uneven, "instance-norm-volume": instance_norm_volume,
    "average-overhang": average_overhang,
}  # fmt: skip
