"""Gather, scatter and order."""

from math import prod
from typing import Any

from coreai import authoring as ai
import numpy as np

from . import op
from .common import constant, counts, ints, like, reshaped, shape_of, wide


def take(x: Any, axis: int, places: np.ndarray) -> Any:
    """The elements at some places of an axis, known beforehand: int32 (count,)."""
    shape = shape_of(x)
    shape[axis] = len(places)
    rows = places.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    wanted = np.broadcast_to(rows, shape)
    return ai.gather_along_axis(x, constant(wanted), np.int32(axis % len(shape)))


@op()
def gather(x: Any, indices: Any, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False,
           *, _out: list) -> Any:  # fmt: skip
    """Rows of the first axis by gather_nd; another axis is brought to the front and back."""
    rank, picked = len(shape_of(x)), shape_of(indices)
    axis %= rank
    if batch_dims:
        return _gather_batches(x, indices, axis, batch_dims, list(_out[0].shape))
    order = [axis, *(a for a in range(rank) if a != axis)]
    moved = x if axis == 0 else ai.transpose(x, counts(*order))
    found = ai.gather_nd(moved, reshaped(ai.cast(indices, np.int32), [*picked, 1]))
    if axis:
        k = len(picked)
        back = [*range(k, k + axis), *range(k), *range(k + axis, k + rank - 1)]
        found = ai.transpose(found, counts(*back))
    return reshaped(found, list(_out[0].shape))


def _gather_batches(x: Any, indices: Any, axis: int, batch_dims: int, shape: list[int]) -> Any:
    """The first axes of both go together: one place a batch, the same along all other axes."""
    sizes, picked = shape_of(x), shape_of(indices)
    batch, count = picked[:batch_dims], prod(picked[batch_dims:])
    flat = [*batch, *[1] * (axis - batch_dims), count, *[1] * (len(sizes) - axis - 1)]
    places = reshaped(ai.cast(indices, np.int32), flat)
    places = ai.broadcast_to(places, counts(*sizes[:axis], count, *sizes[axis + 1 :]))
    return reshaped(ai.gather_along_axis(x, places, np.int32(axis)), shape)


@op()
def gather_nd(x: Any, indices: Any, batch_dims: int = 0, validate_indices: bool = False) -> Any:
    if batch_dims:
        raise ValueError("batch_dims")
    return ai.gather_nd(x, ai.cast(indices, np.int32))


@op()
def gather_along_axis(x: Any, indices: Any, axis: int = 0, validate_indices: bool = False) -> Any:
    return ai.gather_along_axis(x, ai.cast(indices, np.int32), np.int32(axis % len(shape_of(x))))


@op()
def fill(shape: list[int], value: float = 0.0, *, _out: list) -> Any:
    return constant(np.full(_out[0].shape, value, _out[0].dtype.numpy))


@op()
def fill_like(ref_tensor: Any, value: float = 0.0, *, _out: list) -> Any:
    return fill([], value, _out=_out)


@op()
def shape(x: Any) -> Any:
    return constant(ints(*shape_of(x)))


@op()
def one_hot(
    indices: Any, one_hot_vector_size: int, axis: int = -1, on_value: float = 1,
    off_value: float = 0, *, _out: list,
) -> Any:  # fmt: skip
    rank = len(_out[0].shape)
    axis %= rank
    wide = list(shape_of(indices))
    wide.insert(axis, 1)
    places = np.arange(one_hot_vector_size, dtype=np.int32)
    column = places.reshape([-1 if a == axis else 1 for a in range(rank)])
    hit = ai.broadcasting_equal(reshaped(ai.cast(indices, np.int32), wide), constant(column))
    kind = _out[0].dtype.numpy
    values = (constant(np.array(number, kind)) for number in (on_value, off_value))
    return ai.broadcasting_where(hit, *values)


# --- scatter ------------------------------------------------------------------------------------


def _scattered(data: Any, axis: int, indices: Any, updates: Any, mode: str) -> Any:
    """Products and sums of several updates of one element in single precision, rounded once."""
    indices = ai.cast(indices, np.int32)

    def make(data: Any) -> Any:
        new = ai.cast(updates, data.type.dtype)
        output = ai.TensorType(shape_of(data), data.type.dtype)
        return ai.scatter_along_axis(output, data, indices, new, np.int32(axis), scatter_mode=mode)

    return make(data) if mode == "update" else wide(make, data)


@op()
def scatter_along_axis(
    data: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "add",
    validate_indices: bool | None = None,
) -> Any:  # fmt: skip
    return _scattered(data, axis % len(shape_of(data)), indices, updates, mode)


@op()
def scatter(
    data: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "add",
    validate_indices: bool | None = None,
) -> Any:  # fmt: skip
    axis %= len(shape_of(data))
    count = prod(shape_of(indices))
    sizes = shape_of(data)
    sizes[axis] = count
    rows = reshaped(indices, [count if i == axis else 1 for i in range(len(sizes))])
    places = ai.broadcast_to(ai.cast(rows, np.int32), counts(*sizes))
    return _scattered(data, axis, places, reshaped(updates, sizes), mode)


@op()
def scatter_nd(
    data: Any, indices: Any, updates: Any, mode: str = "add", validate_indices: bool | None = None
) -> Any:
    """Rows of a table, whose numbers are the coordinates' distances from its begin."""
    sizes, depth = shape_of(data), shape_of(indices)[-1]
    places = ai.cast(indices, np.int32)
    if not validate_indices:  # negative ones count from the end of their axis
        extent = constant(ints(*sizes[:depth]))
        below = ai.broadcasting_greater(like(places, 0), places)
        places = ai.broadcasting_where(below, ai.broadcasting_add(places, extent), places)
    steps = constant(ints(*(prod(sizes[axis + 1 : depth]) for axis in range(depth))))
    rows = ai.reduce_sum(ai.broadcasting_mul(places, steps), ints(len(shape_of(places)) - 1))
    count, width = prod(shape_of(indices)[:-1]), prod(sizes[depth:])
    rows = ai.broadcast_to(reshaped(rows, [count, 1]), counts(count, width))
    table = reshaped(data, [prod(sizes[:depth]), width])
    made = _scattered(table, 0, rows, reshaped(updates, [count, width]), mode)
    return reshaped(made, sizes)


# --- order --------------------------------------------------------------------------------------


@op()
def argsort(x: Any, axis: int = -1, ascending: bool = False) -> Any:
    order = ai.argsort(x, np.int32(axis), np.bool_(not ascending), np.bool_(True))
    return ai.cast(order, np.int32)


@op()
def topk(
    x: Any, k: int = 1, axis: int = -1, ascending: bool = False, sort: bool = True,
    return_indices: bool = True, output_indices_dtype: str = "int32", *, _out: list,
) -> Any:  # fmt: skip
    shape = shape_of(x)
    axis %= len(shape)
    end = [k if i == axis and k != -1 else size for i, size in enumerate(shape)]
    start, stop, step = ints(*[0] * len(shape)), ints(*end), ints(*[1] * len(shape))
    order = argsort(x, axis, ascending)
    values = ai.gather_along_axis(x, order, np.int32(axis))
    found = [ai.slice_(values, start, stop, step)]
    if return_indices:
        found.append(ai.cast(ai.slice_(order, start, stop, step), _out[1].dtype))
    return found


@op()
def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    axis %= len(shape_of(x))

    def make(x: Any) -> Any:
        summed = ai.scan(x, np.uint32(axis), np.bool_(reverse), combiner="sum")
        return ai.broadcasting_sub(summed, x) if exclusive else summed

    return wide(make, x)


@op()
def band_part(x: Any, lower: int = -1, upper: int = -1) -> Any:
    rows, columns = np.indices(shape_of(x)[-2:])
    kept = np.ones(shape_of(x)[-2:], bool)
    if lower >= 0:
        kept &= rows - columns <= lower
    if upper >= 0:
        kept &= columns - rows <= upper
    return ai.broadcasting_where(constant(kept), x, like(x, 0))


@op()
def range_1d(start: float, end: float, step: float, *, _out: list) -> Any:
    return constant(np.arange(start, end, step).astype(_out[0].dtype.numpy))
