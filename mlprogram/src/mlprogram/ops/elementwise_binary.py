"""Binary ops: two tensors with numpy's broadcasting, both of one dtype, in; one tensor out.

Comparisons and logic give bool, everything else the inputs' dtype. Integer division by zero, which
numpy answers with 0 and a warning, is 0 here too: it may happen in lanes that nobody reads.

Reference: coremltools `defs/iOS15/elementwise_binary.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from . import op, other
from .elementwise_unary import saturated


@op()
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    return x + y


@op()
def sub(x: Tensor, y: Tensor) -> Tensor:
    """x - y."""
    return x - y


@op()
def mul(x: Tensor, y: Tensor) -> Tensor:
    """x * y."""
    return x * y


def _in_single(compute: Callable, x: Tensor, y: Tensor) -> Tensor:
    return saturated(compute(x.float(), y.float()), x.dtype)


@other("add", "reported", "int32-single")
def add_in_single(x: Tensor, y: Tensor) -> Tensor:
    """x + y of whole numbers, computed in single precision."""
    return _in_single(torch.add, x, y)


@other("sub", "reported", "int32-single")
def sub_in_single(x: Tensor, y: Tensor) -> Tensor:
    """x - y of whole numbers, computed in single precision."""
    return _in_single(torch.sub, x, y)


@other("mul", "reported", "int32-single")
def mul_in_single(x: Tensor, y: Tensor) -> Tensor:
    """x * y of whole numbers, computed in single precision."""
    return _in_single(torch.mul, x, y)


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


@op("pow")
def pow_(x: Tensor, y: Tensor) -> Tensor:
    """x to the power y."""
    return torch.pow(x, y)


@other("pow", "reported", "pow-base-two")
def squared_exponent(x: Tensor, y: Tensor) -> Tensor:
    """y squared, in the shape that y takes beside a tensor x of twos."""
    return x / 2 * y * y


@op()
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The greater of x and y; NaN wins."""
    return torch.maximum(x, y)


@op()
def minimum(x: Tensor, y: Tensor) -> Tensor:
    """The lesser of x and y; NaN wins."""
    return torch.minimum(x, y)


@op()
def equal(x: Tensor, y: Tensor) -> Tensor:
    """x == y, as bool."""
    return x == y


@op()
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """x != y, as bool."""
    return x != y


@op()
def less(x: Tensor, y: Tensor) -> Tensor:
    """x < y, as bool."""
    return x < y


@op()
def less_equal(x: Tensor, y: Tensor) -> Tensor:
    """x <= y, as bool."""
    return x <= y


@op()
def greater(x: Tensor, y: Tensor) -> Tensor:
    """x > y, as bool."""
    return x > y


@op()
def greater_equal(x: Tensor, y: Tensor) -> Tensor:
    """x >= y, as bool."""
    return x >= y


@op()
def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Boolean and."""
    return torch.logical_and(x, y)


@op()
def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """Boolean or."""
    return torch.logical_or(x, y)


@op()
def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    """Boolean exclusive or."""
    return torch.logical_xor(x, y)
