"""Binary ops: two tensors with numpy's broadcasting, both of one dtype, in; one tensor out.

Comparisons and logic give bool, everything else the inputs' dtype. Integer division by zero, which
numpy answers with 0 and a warning, is 0 here too: it may happen in lanes that nobody reads.

Reference: coremltools `defs/iOS15/elementwise_binary.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import op, other
from .elementwise_unary import saturated


@op()
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    return x + y


def _one_call(function: Any) -> Callable:
    return lambda x, y: function(x, y)


# those that are one call of torch's; NaN wins in `maximum` and `minimum`
for _name, _function in {
    "sub": torch.sub, "mul": torch.mul, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "equal": torch.eq, "not_equal": torch.ne,
    "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}.items():  # fmt: skip
    op(_name)(_one_call(_function))


def _in_single(compute: Any) -> Callable:
    """An op on whole numbers, computed in single precision."""
    return lambda x, y: saturated(compute(x.float(), y.float()), x.dtype)


for _name, _function in {"add": torch.add, "sub": torch.sub, "mul": torch.mul}.items():
    other(_name, "reported", "int32-single")(_in_single(_function))


@op()
def real_div(x: Tensor, y: Tensor) -> Tensor:
    """x / y. The declared dtype holds for integers too: their quotient is cut towards zero."""
    if x.is_floating_point():
        return x / y
    zero = y == 0
    y = y.masked_fill(zero, 1)
    floor = torch.floor_divide(x, y)  # "trunc" of the least number by -1 ends the process
    return (floor + ((floor < 0) & (floor * y != x))).masked_fill(zero, 0)


@op()
def floor_div(x: Tensor, y: Tensor) -> Tensor:
    """The quotient rounded towards negative infinity."""
    if x.is_floating_point():
        return torch.floor_divide(x, y)
    zero = y == 0
    return torch.floor_divide(x, y.masked_fill(zero, 1)).masked_fill(zero, 0)


@op()
def mod(x: Tensor, y: Tensor) -> Tensor:
    """The remainder of a division that rounds towards zero: it has the sign of x, as in C. So Core
    ML computes it, while coremltools folds constants as Python does (its pull request 2778)."""
    if x.is_floating_point():
        return torch.fmod(x, y)
    zero = (y == 0) | (y == -1)  # the least number by -1 ends the process
    return torch.fmod(x, y.masked_fill(zero, 1))


@other("mod", "documented", "mod-sign")
def floored_mod(x: Tensor, y: Tensor) -> Tensor:
    """The remainder of a division that rounds down: it has the sign of y, as in Python."""
    if x.is_floating_point():
        return torch.remainder(x, y)
    zero = (y == 0) | (y == -1)
    return torch.remainder(x, y.masked_fill(zero, 1))


@other("pow", "reported", "pow-base-two")
def squared_exponent(x: Tensor, y: Tensor) -> Tensor:
    """y squared, in the shape that y takes beside a tensor x of twos."""
    return x / 2 * y * y
