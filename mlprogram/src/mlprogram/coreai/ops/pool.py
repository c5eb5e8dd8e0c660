"""Windows: pools, and a norm over neighbouring channels."""

from math import prod
from typing import Any

from coreai import authoring as ai
from mlprogram.ops.pool import window_layout
import numpy as np

from . import op
from .common import constant, like, reshaped, shape_of, wide
from .products import padded


@op()
def avg_pool(
    x: Any, kernel_sizes: list[int], strides: list[int] | None = None, pad_type: str = "valid",
    pad: list[int] | None = None, ceil_mode: bool = False,
    exclude_padding_from_average: bool = False,
) -> Any:  # fmt: skip
    strides, sides = _window(x, kernel_sizes, strides, pad_type, pad, ceil_mode)

    def summed(x: Any) -> Any:
        return pool("sumpool", padded(x, sides), kernel_sizes, strides)

    def make(x: Any) -> Any:
        if not exclude_padding_from_average:
            return ai.broadcasting_divide(summed(x), like(x, prod(kernel_sizes)))
        ones = constant(np.ones([1, 1, *shape_of(x)[2:]], np.float32))
        return ai.broadcasting_divide(summed(x), summed(ones))

    return wide(make, x)


@op()
def l2_pool(
    x: Any, kernel_sizes: list[int], strides: list[int] | None = None, pad_type: str = "valid",
    pad: list[int] | None = None, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The square root of the sum of squares."""
    strides, sides = _window(x, kernel_sizes, strides, pad_type, pad, ceil_mode)

    def make(x: Any) -> Any:
        squares = padded(ai.broadcasting_mul(x, x), sides)
        return ai.sqrt(pool("sumpool", squares, kernel_sizes, strides))

    return wide(make, x)


@op()
def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta; x (N, C, *D).

    The sum is a pool over the channels, with all other axes in one.
    """
    n, channels, *spatial = shape_of(x)

    def make(x: Any) -> Any:
        flat = reshaped(ai.broadcasting_mul(x, x), [n, 1, channels, prod(spatial)])
        room = padded(flat, [(size // 2, (size - 1) // 2), (0, 0)])
        summed = reshaped(pool("sumpool", room, [size, 1], [1, 1]), shape_of(x))
        scaled = ai.broadcasting_mul(summed, like(x, alpha / size))
        power = ai.broadcasting_pow(ai.broadcasting_add(scaled, like(x, k)), like(x, -beta))
        return ai.broadcasting_mul(x, power)

    return wide(make, x)


@op()
def max_pool(
    x: Any, kernel_sizes: list[int], strides: list[int] | None = None, pad_type: str = "valid",
    pad: list[int] | None = None, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    strides, sides = _window(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
    least = float(np.finfo(x.type.dtype.numpy).min)
    return pool("maxpool", padded(x, sides, least), kernel_sizes, strides)


def _window(x: Any, *how: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """Strides, and the padding with what hangs over, by the executor's rule (`window_layout`)."""
    strides, pads, extra = window_layout(shape_of(x)[2:], *how)
    sides = zip(pads, extra, strict=True)
    return strides, [(before, after + more) for (before, after), (_, more) in sides]


def pool(name: str, x: Any, kernel: list[int], strides: list[int]) -> Any:
    if flat := len(kernel) == 1:
        x = reshaped(x, [*shape_of(x)[:2], 1, shape_of(x)[2]])
        kernel, strides = [1, *kernel], [1, *strides]
    sizes = [(n - k) // s + 1 for n, k, s in zip(shape_of(x)[2:], kernel, strides, strict=True)]
    numbers = [constant(np.array(n, np.uint32)) for n in (kernel, strides, [1] * len(kernel))]
    make = getattr(ai, f"{name}{len(kernel)}d")
    if name == "maxpool":
        output = ai.TensorType([*shape_of(x)[:2], *sizes], x.type.dtype)
        made = make(output, x, *numbers, np.bool_(False))
    else:
        made = make(x, *numbers)
    return reshaped(made, [*shape_of(made)[:2], shape_of(made)[3]]) if flat else made
