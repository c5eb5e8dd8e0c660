"""Helpers of the operators: registration, types, axes, slices."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import TypeAlias

from mlprogram.onnx.evaluate import LARGEST
from mlprogram.onnx.graph.ops import Unsayable, operator
from mlprogram.progress import silent_coremltools
import numpy as np

with silent_coremltools():
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Var, types

MOST_AXES = 5  # that Core ML has of a tensor
MOST_NUMBERS = 2**31 - 1  # of a tensor, whose places have to be whole numbers of 32 bits

Tensor: TypeAlias = Var | np.ndarray


def unary(name: str, mil_name: str) -> None:
    """Register an operator of one tensor that MIL has as `mil_name`."""
    operator(name)(lambda x: getattr(mb, mil_name)(x=x))


def binary(name: str, mil_name: str, since: int = 7) -> None:
    """Register an operator of two tensors, which broadcast, that MIL has as `mil_name`."""
    operator(name, since=since)(lambda x, y: getattr(mb, mil_name)(x=x, y=y))


def joined(tensors: Sequence[Tensor], join: Callable) -> Tensor:
    """Reduce several tensors to one with an operator of two."""
    return reduce(lambda x, y: join(x=x, y=y), tensors)


def _kind(x: Tensor) -> str:
    """numpy's letter for the kind of a tensor's type."""
    known = not isinstance(x, Var)
    return (np.asarray(x).dtype if known else np.dtype(types.nptype_from_builtin(x.dtype))).kind


def is_float(x: Tensor) -> bool:
    return _kind(x) == "f"


def is_int(x: Tensor) -> bool:
    return _kind(x) == "i"


def is_bool(x: Tensor) -> bool:
    return _kind(x) == "b"


def as_float(x: Tensor) -> Tensor:
    if isinstance(x, np.ndarray):
        return np.asarray(x, np.float32)
    return x if is_float(x) else mb.cast(x=x, dtype="fp32")


def as_int(x: Tensor) -> Tensor:
    """Cast to int32, rounding toward zero."""
    return x if is_int(x) else mb.cast(x=x, dtype="int32")


def like(x: Tensor, value: float) -> np.generic:
    """A number in x's type."""
    return np.float32(value) if is_float(x) else np.int32(value)


def first(constant: np.ndarray | None) -> int:
    """The only integer in a constant of shape () or (1,)."""
    return int(np.asarray(constant).reshape(-1)[0])


def check_constant(*sizes: int) -> None:
    """Raise Unsayable for the shape of a constant that is too large to be computed here."""
    if 8 * (count := prod(map(int, sizes))) > LARGEST:
        raise Unsayable(f"a constant of {count:.3g} numbers")


def check_tensor(*sizes: int) -> None:
    """Raise Unsayable for a shape that no tensor has. coremltools counts in int32, and wraps."""
    if min(sizes, default=1) < 1 or prod(map(int, sizes)) > MOST_NUMBERS:
        raise Unsayable(f"a tensor of {' x '.join(f'{size:,}' for size in sizes)} numbers")


def rank(x: Tensor) -> int:
    return len(x.shape)


def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, b elsewhere, broadcast to one shape as MIL's op demands."""
    shape = np.broadcast_shapes(*(tuple(map(int, np.shape(x))) for x in (condition, a, b)))

    def spread(x: Tensor) -> Tensor:
        if isinstance(x, Var) and tuple(shape_of(x)) == shape:
            return x
        check_constant(*shape)
        if not isinstance(x, Var):
            return np.broadcast_to(x, shape).copy()
        if is_bool(x):
            return mb.logical_or(x=x, y=np.zeros(shape, bool))
        return mb.add(x=x, y=np.full(shape, like(x, 0)))

    return mb.select(cond=spread(condition), a=spread(a), b=spread(b))


def moved(move: Callable[..., Var], *tensors: Tensor) -> Var:
    """Apply `move`, which only rearranges values. Booleans are moved as integers, since MIL's
    operators do not move booleans."""
    if not is_bool(tensors[0]):
        return move(*tensors)
    return mb.cast(x=move(*map(as_int, tensors)), dtype="bool")


def one_axis(axis: int, count: int) -> int:
    """An axis of `count` as a non-negative number. Raises Unsayable for one that is not there."""
    if not -count <= axis < count:
        raise Unsayable(f"axis {axis} of {count} axes")
    return int(axis) % count


def all_axes(axes, count: int) -> list[int]:
    """Axes as non-negative numbers; all `count` of them for None."""
    if axes is None:
        return list(range(count))
    return [one_axis(axis, count) for axis in np.asarray(axes).reshape(-1)]


def shape_of(x: Tensor) -> list[int]:
    return [int(size) for size in x.shape]


def reshaped(x: Tensor, shape) -> Tensor:
    """Reshape x, also to the shape (), which MIL's op does not take; for many axes see `_axes`."""
    if isinstance(x, np.ndarray | np.generic):
        return x.reshape([int(size) for size in shape])
    if rank(x) > MOST_AXES:
        x = x.op.x
    if len(shape):
        return mb.reshape(x=x, shape=np.array(shape, np.int32))
    return mb.squeeze(x=x) if rank(x) else x


def sliced(x: Tensor, axis: int, begin: int, end: int, step: int = 1) -> Tensor:
    """x[begin:end:step] along one axis, forward."""
    begins, ends, steps = [0] * rank(x), shape_of(x), [1] * rank(x)
    begins[axis], ends[axis], steps[axis] = begin, end, step
    return mb.slice_by_index(x=x, begin=begins, end=ends, stride=steps)


def along(x: Tensor, axis: int, matrix: np.ndarray) -> Tensor:
    """Multiply a matrix (out, size) with one axis of x."""
    if rank(x) == 1:
        return mb.squeeze(x=along(mb.expand_dims(x=x, axes=[0]), 1, matrix), axes=[0])
    if axis == rank(x) - 2:
        return mb.matmul(x=matrix, y=x)
    if axis == rank(x) - 1:
        return mb.matmul(x=x, y=np.ascontiguousarray(matrix.T))
    perm = [a for a in range(rank(x)) if a != axis] + [axis]
    made = along(mb.transpose(x=x, perm=perm), rank(x) - 1, matrix)
    return mb.transpose(x=made, perm=np.argsort(perm).tolist())


def mil_dtype(dtype: np.dtype) -> np.dtype:
    """The MIL type (fp32, int32 or bool) that represents a type of ONNX. Raises Unsayable."""
    if dtype.kind == "b":
        return np.dtype(bool)
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return np.dtype(np.int32)
    if dtype.kind == "f" or dtype.name.startswith(("bfloat", "float")):  # ml_dtypes' as well
        return np.dtype(np.float32)
    raise Unsayable(f"numbers of type {'string' if dtype.kind in 'OSU' else dtype.name}")


def in_mil(array: np.ndarray, cut: bool = False) -> np.ndarray | np.generic:
    """Convert a constant to its MIL type. Raises Unsayable for integers beyond int32, unless they
    are to be cut to its range."""
    dtype = mil_dtype(array.dtype)
    if array.dtype.kind in "iu" and array.size:
        low, high = int(array.min()), int(array.max())
        if cut:
            array = np.asarray(np.clip(array.astype(object), -(2**31), 2**31 - 1))
        elif low < -(2**31) or high >= 2**31:
            these = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            raise Unsayable(f"whole numbers beyond int32: {these}; export the model without them")
    return array.astype(dtype, copy=False)
