"""Reductions and norms."""

from collections.abc import Callable
from typing import Any

from coreai import authoring as ai
import numpy as np

from . import COREAI_OPS, op
from .common import ints, like, reshaped, shape_of, wide
from .elementwise import rsqrt, square


def _reduced(name: str, x: Any, axes: list[int] | None, keep_dims: bool) -> Any:
    shape = shape_of(x)
    axes = sorted(a % len(shape) for a in (range(len(shape)) if axes is None else axes))
    made = getattr(ai, name)(x, ints(*axes))
    if keep_dims:
        return made
    return reshaped(made, [size for axis, size in enumerate(shape) if axis not in axes])


def _reduction(
    name: str, before: Callable | None = None, after: Callable | None = None
) -> Callable:
    def make(x: Any, axes: list[int] | None = None, keep_dims: bool = False) -> Any:
        def whole(x: Any) -> Any:
            made = _reduced(name, before(x) if before else x, axes, keep_dims)
            return after(made) if after else made

        return wide(whole, x) if name != "reduce_max" and name != "reduce_min" else whole(x)

    return make


COREAI_OPS |= {
    "reduce_max": _reduction("reduce_max"),
    "reduce_min": _reduction("reduce_min"),
    "reduce_sum": _reduction("reduce_sum"),
    "reduce_mean": _reduction("reduce_mean"),
    "reduce_prod": _reduction("reduce_product"),
    "reduce_sum_square": _reduction("reduce_sum", square),
    "reduce_l1_norm": _reduction("reduce_sum", lambda x: ai.abs_(x)),
    "reduce_l2_norm": _reduction("reduce_sum", square, lambda x: ai.sqrt(x)),
    "reduce_log_sum": _reduction("reduce_sum", None, lambda x: ai.log(x)),
}


@op()
def reduce_log_sum_exp(x: Any, axes: list[int] | None = None, keep_dims: bool = False) -> Any:

    def make(x: Any) -> Any:
        most = _reduced("reduce_max", x, axes, True)
        summed = _reduced("reduce_sum", ai.exp(ai.broadcasting_sub(x, most)), axes, True)
        made = ai.broadcasting_add(ai.log(summed), most)
        return made if keep_dims else _reduced("reduce_max", made, axes, False)

    return wide(make, x)


@op()
def reduce_argmax(
    x: Any, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32", *, _out: list
) -> Any:
    found = ai.cast(ai.argmax(x, np.int32(axis)), _out[0].dtype)
    return reshaped(found, list(_out[0].shape))


@op()
def reduce_argmin(
    x: Any, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32", *, _out: list
) -> Any:
    return reduce_argmax(ai.broadcasting_sub(like(x, 0), x), axis, keep_dims, _out=_out)


@op()
def layer_norm(
    x: Any, axes: list[int] | None = None, gamma: Any = None, beta: Any = None,
    epsilon: float = 1e-5,
) -> Any:  # fmt: skip
    axes = list(range(len(shape_of(x)))) if axes is None else [a % len(shape_of(x)) for a in axes]
    shape = [size if axis in axes else 1 for axis, size in enumerate(shape_of(x))]

    def make(x: Any) -> Any:
        centred = ai.broadcasting_sub(x, ai.reduce_mean(x, ints(*axes)))
        spread = ai.reduce_mean(square(centred), ints(*axes))
        made = ai.broadcasting_mul(centred, rsqrt(spread, epsilon))
        for value, join in ((gamma, ai.broadcasting_mul), (beta, ai.broadcasting_add)):
            if value is not None:
                made = join(made, ai.cast(reshaped(value, shape), np.float32))
        return made

    return wide(make, x)


@op()
def l2_norm(x: Any, epsilon: float = 1e-6) -> Any:
    axes = ints(*range(max(0, len(shape_of(x)) - 3), len(shape_of(x))))
    return wide(lambda x: ai.broadcasting_mul(x, rsqrt(ai.reduce_sum(square(x), axes), epsilon)), x)


@op()
def batch_norm(
    x: Any, mean: Any, variance: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Any:
    shape = [1, -1, *[1] * (len(shape_of(x)) - 2)]

    def row(value: Any) -> Any:
        return ai.cast(reshaped(value, shape), np.float32)

    def make(x: Any) -> Any:
        made = ai.broadcasting_mul(ai.broadcasting_sub(x, row(mean)), rsqrt(row(variance), epsilon))
        made = made if gamma is None else ai.broadcasting_mul(made, row(gamma))
        return made if beta is None else ai.broadcasting_add(made, row(beta))

    return wide(make, x)


@op()
def instance_norm(x: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5) -> Any:
    axes, shape = list(range(2, len(shape_of(x)))), [1, -1, *[1] * (len(shape_of(x)) - 2)]

    def make(x: Any) -> Any:
        made = layer_norm(x, axes, epsilon=epsilon)
        for value, join in ((gamma, ai.broadcasting_mul), (beta, ai.broadcasting_add)):
            if value is not None:
                made = join(made, ai.cast(reshaped(value, shape), np.float32))
        return made

    return wide(make, x)
