"""What the ops share: numbers and shapes of Core AI's values, and sums in single precision."""

from collections.abc import Callable
from typing import Any

from coreai import authoring as ai
from mlprogram.coreai.values import constant
import numpy as np


def ints(*numbers: int) -> np.ndarray:
    """Axes, sizes and places, which may be negative."""
    return np.array(numbers, np.int32)


def counts(*numbers: int) -> np.ndarray:
    """Orders, paddings and counts, which Core AI wants without a sign."""
    return np.array(numbers, np.uint32)


def is_float(x: Any) -> bool:
    return x.type.dtype in (ai.float16, ai.float32, ai.bfloat16)


def shape_of(x: Any) -> list[int]:
    return list(x.type.shape)


def like(x: Any, number: float) -> Any:
    """A scalar of x's dtype."""
    return constant(np.array(number, x.type.dtype.numpy))


def wide(make: Callable, x: Any) -> Any:
    """make(x) in single precision, rounded once to x's dtype."""
    if x.type.dtype != ai.float16:
        return make(x)
    return ai.cast(make(ai.cast(x, np.float32)), np.float16)


def reshaped(x: Any, shape: list[int]) -> Any:
    return x if shape_of(x) == list(shape) else ai.reshape(x, ints(*shape))
