"""Convolutions in 1 to 3 dimensions; half is multiplied and summed in float32 and rounded once.

Letters: N batch, C_in and C_out channels, G groups, *D and *K sizes of the input and the kernel. A
convolution with a 1x1 kernel, which is what every projection of a language model is on the Neural
Engine, goes through `pointwise`, a matrix product.

Reference: coremltools `defs/iOS15/conv.py`, `defs/iOS17/conv.py`; the sizes of the `same` paddings
are those of `aggregated_pad` in `defs/_utils.py`.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pointwise(x: Tensor, weight2d: Tensor, bias: Tensor | None = None) -> Tensor:
    """A 1x1 convolution: x (N, C_in, *D), weight2d float32 (C_out, C_in) -> (N, C_out, *D)."""
    n, channels, *spatial = x.shape
    if x.numel() == channels:
        y = torch.mv(weight2d, x.reshape(channels).float())
    else:
        y = torch.matmul(weight2d, x.reshape(n, channels, -1).float())  # (N, C_out, prod D)
    if bias is not None:
        y = y + (bias if y.dim() == 1 else bias[:, None])
    return y.to(x.dtype).view(n, weight2d.shape[0], *spatial)


PadType = Literal["valid", "same", "same_lower", "custom"]


def resolve_padding(
    pad_type: str,
    pad: Sequence[int] | None,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:
    """(before, after) for each spatial dimension. `kernel` is the extent with its dilation.

    `same` makes ceil(size / stride) outputs and puts the odd element after, `same_lower` before.
    Raises ValueError for another type.
    """
    if pad_type not in get_args(PadType):
        raise ValueError(f"pad_type={pad_type!r} is not one of {', '.join(get_args(PadType))}")
    if pad_type == "custom":
        return [(0, 0)] * len(sizes) if pad is None else list(zip(pad[::2], pad[1::2], strict=True))
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    total = [
        max(0, (-(-size // s) - 1) * s + k - size)
        for size, k, s in zip(sizes, kernel, strides, strict=True)
    ]
    if pad_type == "same_lower":
        return [(t - t // 2, t // 2) for t in total]
    return [(t // 2, t - t // 2) for t in total]


def pad_spatial(x: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    """x (N, C, *D) with `pads` (before, after) elements of `value`; negative ones cut."""
    if not any(before or after for before, after in pads):
        return x
    # torch lists the last dimension first
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


@op()
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: list[int] | None = None,
    pad_type: PadType = "valid",
    pad: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    """x (N, C_in, *D), weight (C_out, C_in/G, *K), bias (C_out,) -> (N, C_out, *D_out).

    `pad`, pairs of before and after, counts for pad_type "custom" only.
    """
    rank = x.dim() - 2
    kernel = weight.shape[2:]
    strides = strides or [1] * rank
    dilations = dilations or [1] * rank
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = resolve_padding(pad_type, pad, x.shape[2:], extent, strides)
    padded = any(before or after for before, after in pads)
    if groups == 1 and kernel.numel() == 1 and not padded and max(strides) == 1:
        return pointwise(x, weight.reshape(weight.shape[0], -1).float(), bias)
    y = _CONV[rank](
        pad_spatial(x.float(), pads),
        weight.float(),
        None if bias is None else bias.float(),
        stride=strides,
        dilation=dilations,
        groups=groups,
    )
    return y.to(x.dtype)


@op()
def conv_quantized(
    x: Tensor,
    weight: Tensor,
    quantization_type: str,
    quant_scale: Tensor,
    quant_bias: Tensor,
    bias: Tensor | None = None,
    nbits: int = 8,
    strides: list[int] | None = None,
    pad_type: PadType = "valid",
    pad: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    """`conv` with uint8 weights that stand for weight * quant_scale + quant_bias, or for the
    entries of the table quant_scale (quantization_type "lut")."""
    if quantization_type == "lut":
        real = quant_scale.float().flatten()[weight.long()]
    else:
        per_output = [-1] + [1] * (weight.dim() - 1)  # scalars and (C_out,) alike
        scale = quant_scale.float().reshape(per_output)
        real = weight.float() * scale + quant_bias.float().reshape(per_output)
    return conv(x, real, bias, strides, pad_type, pad, dilations, groups)


@op()
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: list[int] | None = None,
    output_shape: list[int] | None = None,
    pad_type: PadType = "valid",
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    """x (N, C_in, *D), weight (C_in, C_out/G, *K), bias (C_out,) -> (N, C_out, *D_out).

    The full result, (D-1) * stride + extent long, is cut by `pad` (custom), to D * stride (same),
    or to `output_shape`, whose part beyond the full result holds the bias alone.
    """
    rank = x.dim() - 2
    strides = strides or [1] * rank
    y = _TRANSPOSED[rank](
        x.float(), weight.float(), stride=strides, groups=groups, dilation=dilations or 1
    )
    full = y.shape[2:]
    if pad_type == "same":
        sizes = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
        sizes = sizes if output_shape is None else output_shape[2:]
        before = [max(0, f - size) // 2 for f, size in zip(full, sizes, strict=True)]
    else:
        pads = resolve_padding(pad_type, pad, full, full, strides)
        before = [b for b, _ in pads]
        sizes = [f - b - a for f, (b, a) in zip(full, pads, strict=True)]
        sizes = sizes if output_shape is None else output_shape[2:]
    ends = zip(before, sizes, full, strict=True)
    y = pad_spatial(y, [(-b, b + size - f) for b, size, f in ends])
    if bias is not None:
        y = y + bias.view(-1, *[1] * rank)
    return y.to(x.dtype)
