"""precision="ane": run a program with what is published about the Neural Engine's arithmetic.

This is experimental and not exact: sources disagree, and nobody outside of Apple knows the rest. It
serves to find programs whose results depend on it, on a machine without an engine. Three things
differ from half precision elsewhere in this library:

- a sum that reaches 32,768 becomes infinite (or stays there, by others);
- sums have 16 bits after the point, so that what is smaller than 2^-17 is lost;
- no op reads infinity or NaN: it gets the largest number of half precision, and 0.
"""

from collections.abc import Callable
from typing import Any

from mlprogram.package.function import Operation
import torch
from torch import Tensor

__all__ = ["SUMS", "as_engine"]

#: The ops that sum. How normalisations and softmax sum is not published.
SUMS = frozenset(["conv", "conv_transpose", "linear", "matmul", "einsum"]) | frozenset(
    ["reduce_mean", "reduce_sum", "reduce_sum_square"]
)
STEP = 2.0**-16
LOST = 32_768  # a sum of this size is infinite, as is published of the engine
LARGEST = torch.finfo(torch.float16).max


def as_engine(operation: Operation, function: Callable) -> Callable:
    """Wrap an op's function with the engine's arithmetic."""
    if operation.type not in SUMS or operation.outputs[0][1].dtype != "fp16":
        return lambda **given: function(**{key: _finite(v) for key, v in given.items()})

    def run(**given: Any) -> Tensor:
        # Widened, so that sums are seen before they are rounded.
        result = function(**{key: _finite(v, torch.float32) for key, v in given.items()})
        mean = operation.type == "reduce_mean"
        return _summed(result, given["x"].numel() / result.numel() if mean else 1)

    return run


def _summed(y: Tensor, terms: float) -> Tensor:
    """Round a float32 sum, or a mean of `terms`, as an accumulator with 16 bits before and after
    the point would, to half precision."""
    fixed = (y / STEP).round() * STEP
    lost = y.abs() * terms >= LOST
    return torch.where(lost, y.sign() * torch.inf, fixed).half()


def _finite(value: object, dtype: torch.dtype = torch.float16) -> object:
    """A tensor of half precision in `dtype`, without infinity and NaN; anything else as it is."""
    if isinstance(value, list):
        return [_finite(one, dtype) for one in value]
    if not isinstance(value, Tensor) or value.dtype != torch.float16:
        return value
    return torch.nan_to_num(value, nan=0.0, posinf=LARGEST, neginf=-LARGEST).to(dtype)
