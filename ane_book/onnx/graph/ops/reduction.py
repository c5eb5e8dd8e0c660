"""Sums and their like along axes."""

from math import prod

import numpy as np

from . import Constant, operator
from ._axes import is_high, transposed
from ._common import (
    Tensor,
    all_axes,
    as_float,
    as_int,
    is_bool,
    is_float,
    mb,
    rank,
    reshaped,
    shape_of,
)


def _reduced(x: Tensor, axes, keepdims: int, noop_with_empty_axes: int, reduce) -> Tensor:
    """Over `axes`, or over all of them, or over none of them, where there are none."""
    named = [] if axes is None else np.asarray(axes).reshape(-1)
    if not len(named) and noop_with_empty_axes:
        return reduce(x, [])
    if not rank(x):  # of a number there is one
        return mb.squeeze(x=reduce(mb.expand_dims(x=x, axes=[0]), [0], False), axes=None)
    chosen = all_axes(named if len(named) else None, rank(x))
    if not is_high(x):
        return reduce(x, chosen, bool(keepdims))
    sizes = shape_of(x)
    rest = [axis for axis in range(rank(x)) if axis not in chosen]
    rows = reshaped(transposed(x, rest + chosen), [-1, prod(sizes[axis] for axis in chosen)])
    kept = [1 if axis in chosen else size for axis, size in enumerate(sizes)]
    return reshaped(reduce(rows, [1], False), kept if keepdims else [sizes[axis] for axis in rest])


def _define(name: str, before, mil_name: str, after) -> None:
    """An operator that does something to each number, reduces, and does something to the result."""

    def convert(
        x: Tensor, axes: Constant | None = None, *, keepdims=1, noop_with_empty_axes=0
    ) -> Tensor:
        def reduce(values: Tensor, chosen: list[int], keep: bool = True) -> Tensor:
            values = before(values)
            if not chosen:
                return after(values)
            return after(getattr(mb, mil_name)(x=values, axes=chosen, keep_dims=keep))

        how = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
        if not is_float(x) and name in REAL:
            return as_int(convert(as_float(x), axes, **how))
        if is_bool(x):
            return mb.cast(x=convert(as_int(x), axes, **how), dtype="bool")
        return _reduced(x, axes, keepdims, noop_with_empty_axes, reduce)

    operator(name)(convert)


def _same(x: Tensor) -> Tensor:
    return x


def _square(x: Tensor) -> Tensor:
    return mb.mul(x=x, y=x)


def _absolute(x: Tensor) -> Tensor:
    return mb.abs(x=x)


def _root(x: Tensor) -> Tensor:
    return mb.sqrt(x=x)


def _log(x: Tensor) -> Tensor:
    return mb.log(x=x, epsilon=np.float32(0))


#: Of whole numbers these are found as real ones.
REAL = {"ReduceL2", "ReduceLogSum", "ReduceMean"}

_define("ReduceL1", _absolute, "reduce_sum", _same)
_define("ReduceL2", _square, "reduce_sum", _root)
_define("ReduceLogSum", _same, "reduce_sum", _log)
_define("ReduceMax", _same, "reduce_max", _same)
_define("ReduceMean", _same, "reduce_mean", _same)
_define("ReduceMin", _same, "reduce_min", _same)
_define("ReduceProd", _same, "reduce_prod", _same)
_define("ReduceSum", _same, "reduce_sum", _same)
_define("ReduceSumSquare", _square, "reduce_sum", _same)


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(
    x: Tensor, axes: Constant | None = None, *, keepdims=1, noop_with_empty_axes=0
) -> Tensor:
    def reduce(values: Tensor, chosen: list[int], keep: bool = True) -> Tensor:
        if not chosen:
            return mb.identity(x=values)
        return mb.reduce_log_sum_exp(x=values, axes=chosen, keep_dims=keep)

    return _reduced(as_float(x), axes, keepdims, noop_with_empty_axes, reduce)


def _last(x: Tensor, axis: int, keepdims: int, pick) -> Tensor:
    """Where the last of equals is: the first of the reversed axis, counted from its end."""
    back = mb.reverse(x=x, axes=[axis])
    found = pick(x=back, axis=axis, keep_dims=bool(keepdims))
    return mb.sub(x=np.int32(int(x.shape[axis]) - 1), y=found)


def _arg(name: str, mil_name: str) -> None:
    def convert(x: Tensor, *, axis=0, keepdims=1, select_last_index=0) -> Tensor:
        pick = getattr(mb, mil_name)
        if select_last_index:
            return _last(x, axis % rank(x), keepdims, pick)
        return pick(x=x, axis=axis, keep_dims=bool(keepdims))

    operator(name)(convert)


_arg("ArgMax", "reduce_argmax")
_arg("ArgMin", "reduce_argmin")
