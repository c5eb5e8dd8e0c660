"""Numbers in 8 bits and back, in the call: in single precision, as the executor does it."""

from typing import Any

from coreai import authoring as ai
import numpy as np

from . import op
from .common import reshaped, shape_of
from .elementwise import clip


def _along(values: Any, axis: int | None, x: Any) -> Any:
    """A scalar or a vector along `axis`, in single precision."""
    values, rank = ai.cast(values, np.float32), len(shape_of(x))
    if len(shape_of(values)) != 1 or rank == 1:
        return values
    return reshaped(values, [-1 if i == (axis or 0) % rank else 1 for i in range(rank)])


@op()
def quantize(
    input: Any, scale: Any, output_dtype: str, zero_point: Any = None, axis: int | None = None
) -> Any:
    single = ai.cast(input, np.float32)
    steps = ai.round_(ai.broadcasting_divide(single, _along(scale, axis, input)))
    if zero_point is not None:
        steps = ai.broadcasting_add(steps, _along(zero_point, axis, input))
    kind = {"int8": np.int8, "uint8": np.uint8}[output_dtype]
    return ai.cast(clip(steps, np.iinfo(kind).min, np.iinfo(kind).max), kind)


@op()
def dequantize(input: Any, scale: Any, zero_point: Any = None, axis: int | None = None) -> Any:
    steps = ai.cast(input, np.float32)
    if zero_point is not None:
        steps = ai.broadcasting_sub(steps, _along(zero_point, axis, input))
    return ai.cast(ai.broadcasting_mul(steps, _along(scale, axis, input)), scale.type.dtype)
