"""Faster functions for ops whose weights or shapes are known at load.

Products with constant weights read them as the package stores them (`products.py`); softmax, layer
norm and the products of attention, where they are small, run compiled and in one thread, which
takes less time than waking torch's; a transposed tensor is moved in memory at once.

Everything here is optional: with `optimize=False` the executor calls the plain ops, and a test
holds both to the same numbers. research/executor-speed.md has what was tried and measured.
"""

from collections.abc import Callable
from functools import partial
from math import prod

from ane_book.mil.kernels import native, native_ops
from ane_book.mil.kernels.products import product
from ane_book.mil.ops import OPS
from ane_book.mil.package.reader import Operation
import torch

__all__ = ["specialize"]

SMALL = 1 << 16  # elements of x up to which one thread is enough
FEW_ROWS = 16  # of a batch of products: with more of them, torch's are faster

Shape = tuple[int, ...]


def specialize(compiler, operation: Operation) -> tuple[Callable, list[str]] | None:
    """A faster function for an op, and the source text of its arguments; None for most ops."""
    function = product(compiler.constants, operation)
    if function:
        return function, [compiler.argument("x", operation.inputs["x"])]
    if operation.type == "transpose":
        return _laid_out, compiler.arguments(operation)
    prepare = PREPARE.get(operation.type)
    if prepare is None or not native.available():
        return None
    operands = [key for key in ("x", "y") if key in operation.inputs]
    shapes = [_shape(compiler, operation.inputs[key][0]) for key in operands]
    parameters = _parameters(compiler, operation, operands)
    dtype = compiler.constants.dtype(operation.outputs[0][1])
    if any(_dtype(compiler, operation.inputs[key][0]) != dtype for key in operands):
        return None
    if None in shapes or parameters is None or dtype not in (torch.float16, torch.float32):
        return None
    run = prepare(parameters, dtype, *shapes)
    if run is None:
        return None
    plain = partial(OPS[operation.type].function, **parameters)
    arguments = [compiler.argument(key, operation.inputs[key]) for key in operands]
    return native_ops.fixed(plain, run, dtype, *shapes), arguments


def _laid_out(x: torch.Tensor, perm: list[int]) -> torch.Tensor:
    """`transpose`, moved in memory: what comes after it reads it faster than a permuted view."""
    return x.permute(perm).contiguous()


def _shape(compiler, item) -> Shape | None:
    """The shape of a value that is computed at run time, if it is declared and not empty."""
    type_ = compiler.types.get(item) if isinstance(item, str) else None
    if type_ is None or None in type_.shape or 0 in type_.shape:
        return None
    return type_.shape


def _dtype(compiler, item) -> torch.dtype | None:
    """The dtype of a value that is computed at run time."""
    type_ = compiler.types.get(item) if isinstance(item, str) else None
    return type_ and compiler.constants.dtype(type_)


def _parameters(compiler, operation: Operation, operands: list[str]) -> dict | None:
    """What the op takes beside its operands; None if some of it is computed at run time."""
    constants, op, found = compiler.constants, compiler.op(operation), {}
    for key, items in operation.inputs.items():
        if key in operands:
            continue
        value = constants.find(items[0])
        if value is None:
            return None
        found[key] = constants.plain(key, value) if key in op.static else constants.tensor(value)
    return found


def _softmax(parameters: dict, dtype: torch.dtype, shape: Shape) -> Callable | None:
    last = parameters.get("axis", -1) in (-1, len(shape) - 1)
    return native_ops.softmax(shape, dtype) if last and prod(shape) <= SMALL else None


def _layer_norm(parameters: dict, dtype: torch.dtype, shape: Shape) -> Callable | None:
    axes = sorted(axis % len(shape) for axis in parameters.get("axes", range(len(shape))))
    if not axes or axes != [*range(axes[0], axes[-1] + 1)] or prod(shape) > SMALL:
        return None
    gamma, beta = parameters.get("gamma"), parameters.get("beta")
    sizes = [shape[axis] for axis in axes]  # compiled code reads as many factors
    if any(factor is not None and [*factor.shape] != sizes for factor in (gamma, beta)):
        return None
    epsilon = parameters.get("epsilon", 1e-5)
    return native_ops.layer_norm(shape, dtype, range(axes[0], axes[-1] + 1), gamma, beta, epsilon)


def _matmul(parameters: dict, dtype: torch.dtype, x: Shape, y: Shape) -> Callable | None:
    transpose_y = parameters.get("transpose_y", False)
    if parameters.get("transpose_x") or min(len(x), len(y)) < 2 or x[:-2] != y[:-2]:
        return None
    inner = y[-1] if transpose_y else y[-2]
    if x[-2] > FEW_ROWS or inner != x[-1]:
        return None
    return native_ops.batch_matmul(x, y, transpose_y, dtype)


PREPARE = {"softmax": _softmax, "layer_norm": _layer_norm, "matmul": _matmul}
