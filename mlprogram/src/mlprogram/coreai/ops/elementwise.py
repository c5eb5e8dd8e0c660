"""Ops on each element: arithmetic, comparisons, rounding and casts."""

from collections.abc import Callable
from typing import Any

from coreai import authoring as ai
import numpy as np

from . import COREAI_OPS, op
from .common import is_float, like, wide

_BINARY = {
    "add": "broadcasting_add", "sub": "broadcasting_sub", "mul": "broadcasting_mul",
    "maximum": "broadcasting_maximum", "minimum": "broadcasting_minimum",
    "pow": "broadcasting_pow", "mod": "broadcasting_modulo",
    "floor_div": "broadcasting_floor_divide", "equal": "broadcasting_equal",
    "not_equal": "broadcasting_not_equal", "greater": "broadcasting_greater",
    "logical_and": "broadcasting_and", "logical_or": "broadcasting_or",
    "logical_xor": "broadcasting_xor",
}  # fmt: skip

_UNARY = {
    "abs": "abs_", "acos": "acos", "asin": "asin", "atan": "atan", "atanh": "atanh", "cos": "cos",
    "cosh": "cosh", "erf": "erf", "exp": "exp", "logical_not": "not_", "relu": "relu",
    "round": "round_", "sigmoid": "sigmoid", "silu": "silu", "sin": "sin", "sinh": "sinh",
    "sqrt": "sqrt", "tan": "tan", "tanh": "tanh",
}  # fmt: skip


def _theirs(name: str) -> Callable:
    """Core AI's op, whose inputs have other names but stand in the same order."""
    return lambda **given: getattr(ai, name)(*given.values())


COREAI_OPS |= {name: _theirs(theirs) for name, theirs in (_BINARY | _UNARY).items()}


@op()
def real_div(x: Any, y: Any) -> Any:
    if is_float(x):
        return ai.broadcasting_divide(x, y)
    wide = ai.broadcasting_divide(ai.cast(x, np.float32), ai.cast(y, np.float32))
    return ai.cast(wide, x.type.dtype)


@op()
def less(x: Any, y: Any) -> Any:
    return ai.broadcasting_greater(y, x)


@op()
def greater_equal(x: Any, y: Any) -> Any:
    return ai.broadcasting_or(ai.broadcasting_greater(x, y), ai.broadcasting_equal(x, y))


@op()
def less_equal(x: Any, y: Any) -> Any:
    return greater_equal(y, x)


@op()
def square(x: Any) -> Any:
    return ai.broadcasting_mul(x, x)


@op()
def rsqrt(x: Any, epsilon: float = 1e-12) -> Any:
    return wide(lambda x: ai.rsqrt(ai.broadcasting_add(x, like(x, epsilon))), x)


@op()
def inverse(x: Any, epsilon: float = 1e-4) -> Any:
    return wide(
        lambda x: ai.broadcasting_divide(like(x, 1), ai.broadcasting_add(x, like(x, epsilon))), x
    )


@op()
def log(x: Any, epsilon: float = 1e-45) -> Any:
    return wide(lambda x: ai.log(ai.broadcasting_add(x, like(x, epsilon))), x)


@op()
def exp2(x: Any) -> Any:
    return ai.broadcasting_pow(like(x, 2), x)


@op()
def floor(x: Any) -> Any:
    return ai.broadcasting_floor_divide(x, like(x, 1))


@op()
def ceil(x: Any) -> Any:
    negative = ai.broadcasting_sub(like(x, 0), x)
    return ai.broadcasting_sub(like(x, 0), floor(negative))


@op()
def sign(x: Any) -> Any:
    zero = like(x, 0)
    up, down = (
        ai.cast(ai.broadcasting_greater(a, b), x.type.dtype) for a, b in ((x, zero), (zero, x))
    )
    return ai.broadcasting_sub(up, down)


@op()
def clip(x: Any, alpha: float, beta: float) -> Any:
    return ai.broadcasting_minimum(ai.broadcasting_maximum(x, like(x, alpha)), like(x, beta))


@op()
def threshold(x: Any, alpha: float) -> Any:
    return ai.broadcasting_maximum(x, like(x, alpha))


@op()
def cast(x: Any, dtype: str, *, _out: list) -> Any:
    """Floats are cut towards zero on their way to integers, and any but 0 is true."""
    target = _out[0].dtype
    if target == ai.bool_ and x.type.dtype != ai.bool_:
        return ai.broadcasting_not_equal(x, like(x, 0))
    if is_float(x) and target == ai.int32:
        # Core AI takes a cast to int32 and back for nothing, and drops it with the cut
        # (coreai-torch #9; 1.0.0b1 to b3), so the cut is an op of its own.
        x = ai.broadcasting_where(ai.broadcasting_greater(like(x, 0), x), ceil(x), floor(x))
    return x if target == x.type.dtype else ai.cast(x, target)


@op()
def select(cond: Any, a: Any, b: Any) -> Any:
    return ai.broadcasting_where(cond, a, b)


@op()
def identity(x: Any) -> Any:
    return x
