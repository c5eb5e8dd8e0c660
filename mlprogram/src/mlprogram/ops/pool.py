"""Pooling over windows in 1 to 3 dimensions; half is summed in float32 and rounded once.

x is (N, C, *D), the output (N, C, *D_out); `kernel_sizes` and `strides` have one entry for each
dimension of *D, `pad` a pair. With `ceil_mode` a last window may hang over the padded input. What
hangs over is padding to Core ML: its averages divide by the whole kernel there, where torch's
divide by the elements inside (measured by others: coremltools issue 2772, pull request 2844).

Reference: coremltools `defs/iOS15/pool.py`; sizes by `spatial_dimensions_out_shape` in
`defs/_utils.py`.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op, other
from .conv import pad_spatial, resolve_padding

_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

Pads = list[tuple[int, int]]


def _overhang(sizes: Sequence[int], kernel: list[int], strides: list[int], pads: Pads) -> Pads:
    """(0, elements) that the last window of `ceil_mode` reaches beyond the padding."""
    found = []
    for size, k, s, (before, after) in zip(sizes, kernel, strides, pads, strict=True):
        padded = size + before + after
        windows = -(-(padded - k) // s) + 1
        # a window has to start inside the input or the padding before it
        if before + after > 0 and (windows - 1) * s >= size + before:
            windows -= 1
        found.append((0, max(0, (windows - 1) * s + k - padded)))
    return found


def window_layout(
    sizes: Sequence[int],
    kernel_sizes: list[int],
    strides: list[int] | None,
    pad_type: str,
    pad: list[int] | None,
    ceil_mode: bool,
) -> tuple[list[int], Pads, Pads]:
    """strides, padding, and overhang beyond the padding, of windows over these sizes."""
    strides = strides or [1] * len(sizes)
    pads = resolve_padding(pad_type.lower(), pad, sizes, kernel_sizes, strides)
    if not ceil_mode:
        return strides, pads, [(0, 0)] * len(sizes)
    return strides, pads, _overhang(sizes, kernel_sizes, strides, pads)


@op()
def avg_pool(
    x: Tensor,
    kernel_sizes: list[int],
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    ceil_mode: bool = False,
    exclude_padding_from_average: bool = False,
) -> Tensor:
    """Mean of each window; padding counts as zeros unless `exclude_padding_from_average`."""
    sizes = x.shape[2:]
    strides, pads, extra = window_layout(sizes, kernel_sizes, strides, pad_type, pad, ceil_mode)
    average = _AVERAGE[len(kernel_sizes)]
    y = average(pad_spatial(pad_spatial(x.float(), pads), extra), kernel_sizes, strides)
    if exclude_padding_from_average:
        ones = pad_spatial(pad_spatial(torch.ones(1, 1, *x.shape[2:]), pads), extra)
        y = y / average(ones, kernel_sizes, strides)
    return y.to(x.dtype)


@op()
def l2_pool(
    x: Tensor,
    kernel_sizes: list[int],
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Square root of the sum (not the mean) of squares of each window."""
    sizes = x.shape[2:]
    strides, pads, extra = window_layout(sizes, kernel_sizes, strides, pad_type, pad, ceil_mode)
    squares = pad_spatial(pad_spatial(x.float().square(), pads), extra)
    mean = _AVERAGE[len(kernel_sizes)](squares, kernel_sizes, strides)
    return (mean * prod(kernel_sizes)).sqrt().to(x.dtype)


@op()
def max_pool(
    x: Tensor,
    kernel_sizes: list[int],
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Greatest element of each window; padding never wins."""
    return max_pool_as_declared(x, kernel_sizes, strides, pad_type, pad, ceil_mode)


@other("max_pool", "reported", "max-pool-padding")
def max_pool_as_declared(
    x: Tensor,
    kernel_sizes: list[int],
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    ceil_mode: bool = False,
    _out: list[tuple] | None = None,
) -> Tensor:
    """`max_pool` of as many windows as are declared: -inf in those that see padding alone.

    Without a declared shape there are none of these.
    """
    sizes = x.shape[2:]
    strides, pads, extra = window_layout(sizes, kernel_sizes, strides, pad_type, pad, ceil_mode)
    made = _out[0][1][2:] if _out else [None] * len(sizes)
    spans = zip(made, sizes, kernel_sizes, strides, pads, extra, strict=True)
    beyond = [
        (0, after if count is None else max(after, (count - 1) * s + k - n - sum(padding)))
        for count, n, k, s, padding, (_, after) in spans
    ]
    least = float("-inf")
    padded = pad_spatial(pad_spatial(x.float(), pads, least), beyond, least)
    return _MAX[len(kernel_sizes)](padded, kernel_sizes, strides).to(x.dtype)
