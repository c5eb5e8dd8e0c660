"""Reductions along axes, and the index of the largest or smallest element."""

from collections.abc import Callable
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
    one_axis,
    rank,
    reshaped,
    shape_of,
)


def _reduced(
    x: Tensor, axes: Constant | None, keepdims: int, noop_with_empty_axes: int, reduce: Callable
) -> Tensor:
    """Reduce over `axes`; if there are none, over all axes or, if so asked, over none."""
    named = axes is not None and np.size(axes) > 0
    if not named and noop_with_empty_axes:
        return reduce(x, [])
    if not rank(x):  # of a number there is one
        return mb.squeeze(x=reduce(mb.expand_dims(x=x, axes=[0]), [0], False), axes=None)
    chosen = all_axes(axes if named else None, rank(x))
    if not is_high(x):
        return reduce(x, chosen, bool(keepdims))
    sizes = shape_of(x)
    rest = [axis for axis in range(rank(x)) if axis not in chosen]
    rows = reshaped(transposed(x, rest + chosen), [-1, prod(sizes[axis] for axis in chosen)])
    kept = [1 if axis in chosen else size for axis, size in enumerate(sizes)]
    return reshaped(reduce(rows, [1], False), kept if keepdims else [sizes[axis] for axis in rest])


#: Reductions that are computed in real numbers even for integers.
REAL = {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"}


def _same(x: Tensor) -> Tensor:
    return x


def _define(name: str, along: Callable, before: Callable = _same, after: Callable = _same) -> None:
    """Register a reduction with an elementwise function before it and one after it."""

    def convert(
        x: Tensor, axes: Constant | None = None, *, keepdims=1, noop_with_empty_axes=0
    ) -> Tensor:
        def reduce(values: Tensor, chosen: list[int], keep: bool = True) -> Tensor:
            values = before(values)
            if chosen:
                values = along(x=values, axes=chosen, keep_dims=keep)
            return after(values)

        how = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
        if not is_float(x) and name in REAL:
            return as_int(convert(as_float(x), axes, **how))
        if is_bool(x):
            return mb.cast(x=convert(as_int(x), axes, **how), dtype="bool")
        return _reduced(x, axes, keepdims, noop_with_empty_axes, reduce)

    operator(name)(convert)


def _square(x: Tensor) -> Tensor:
    return mb.mul(x=x, y=x)


def _log_sum_exp(x: Tensor, axes: list[int], keep_dims: bool) -> Tensor:
    """The largest number plus the log of the rest: Core ML's own op overflows."""
    top = mb.reduce_max(x=x, axes=axes, keep_dims=True)
    finite = mb.equal(x=mb.sub(x=top, y=top), y=np.float32(0))  # infinity less itself is NaN
    top = mb.select(cond=finite, a=top, b=np.float32(0))
    rest = mb.reduce_sum(x=mb.exp(x=mb.sub(x=x, y=top)), axes=axes, keep_dims=True)
    total = mb.add(x=mb.log(x=rest, epsilon=np.float32(0)), y=top)
    return total if keep_dims else mb.squeeze(x=total, axes=axes)


_define("ReduceL1", mb.reduce_sum, before=lambda x: mb.abs(x=x))
_define("ReduceL2", mb.reduce_sum, before=_square, after=lambda x: mb.sqrt(x=x))
_define("ReduceLogSum", mb.reduce_sum, after=lambda x: mb.log(x=x, epsilon=np.float32(0)))
_define("ReduceLogSumExp", _log_sum_exp)
_define("ReduceMax", mb.reduce_max)
_define("ReduceMean", mb.reduce_mean)
_define("ReduceMin", mb.reduce_min)
_define("ReduceProd", mb.reduce_prod)
_define("ReduceSum", mb.reduce_sum)
_define("ReduceSumSquare", mb.reduce_sum, before=_square)


def _arg(name: str, mil_name: str) -> None:
    """Register an argmax or argmin, which returns the first or the last of equal elements."""

    def convert(x: Tensor, *, axis=0, keepdims=1, select_last_index=0) -> Tensor:
        pick = getattr(mb, mil_name)
        if not select_last_index:
            return pick(x=x, axis=axis, keep_dims=bool(keepdims))
        axis = one_axis(axis, rank(x))
        # The last one is the first of the reversed axis, counted from the end.
        from_end = pick(x=mb.reverse(x=x, axes=[axis]), axis=axis, keep_dims=bool(keepdims))
        return mb.sub(x=np.int32(shape_of(x)[axis] - 1), y=from_end)

    operator(name)(convert)


_arg("ArgMax", "reduce_argmax")
_arg("ArgMin", "reduce_argmin")
