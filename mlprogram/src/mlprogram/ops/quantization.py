"""Affine quantisation at run time. Reference: coremltools `defs/iOS17/quantization_ops.py`."""

import torch
from torch import Tensor

from . import op
from .constexpr import along, shift_scale

RANGES = {"int8": (torch.int8, -128, 127), "uint8": (torch.uint8, 0, 255)}


@op()
def quantize(
    input: Tensor,
    scale: Tensor,
    output_dtype: str,
    zero_point: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """clip(round(input / scale) + zero_point), halves to even; scalars, or vectors along `axis`."""
    dtype, low, high = RANGES[output_dtype]
    steps = (input.float() / along(scale, axis, input.dim()).float()).round()
    if zero_point is not None:
        steps = steps + along(zero_point, axis, input.dim())
    return steps.clamp(low, high).to(dtype)


@op()
def dequantize(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """(input - zero_point) * scale in scale's dtype; scalars, or vectors along `axis`."""
    offset = None if zero_point is None else along(zero_point, axis, input.dim())
    return shift_scale(input, along(scale, axis, input.dim()), offset)
