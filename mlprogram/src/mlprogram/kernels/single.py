"""Faster functions for single ops whose weights or shapes are known at load.

Products with constant weights read them as the package stores them (`products.py`). Small softmax,
layer norm and batched products run compiled in one thread, which takes less time than waking
torch's threads. A transposed tensor is copied at once, not viewed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from mlprogram.kernels.graph import Match, Unfit
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.products import product
from mlprogram.ops import OPS
import torch

__all__ = ["prepare_product", "prepare_small", "prepare_transpose"]

SMALL = 1 << 16  # elements of x up to which one thread is enough
FEW_ROWS = 16  # with more rows in a batched product, torch is faster

Shape = tuple[int, ...]


def prepare_product(match: Match) -> tuple[list, Callable]:
    """Prepare a product with a constant weight."""
    return match.last.inputs["x"], product(match.graph.constants, match.last)


def prepare_transpose(match: Match) -> tuple[list, Callable]:
    """Prepare `transpose` as a copy, which later ops read faster than a permuted view."""
    perm = match.graph.value(match.last, "perm")
    if perm is None:
        raise Unfit("its axes are known at run time only")
    return match.last.inputs["x"], lambda x: x.permute(perm).contiguous()


def prepare_small(match: Match) -> tuple[list, Callable]:
    """Prepare the compiled form of a small softmax, layer norm or batched product."""
    operation, graph = match.last, match.graph
    keys = [key for key in ("x", "y") if key in operation.inputs]
    operands = [operation.inputs[key][0] for key in keys]
    shapes = [shape for item in operands if (shape := graph.shape(item)) is not None]
    if len(shapes) < len(operands):
        raise Unfit("a shape is open, or it is no float that is computed at run time")
    made = operation.outputs[0][1].dtype
    if made not in ("fp16", "fp32") or any(graph.types[x].dtype != made for x in operands):
        raise Unfit("its operands differ in dtype from its result")
    dtype, parameters = graph.constants.dtype(operation.outputs[0][1]), _parameters(match, keys)
    run = SMALL_OPS[operation.type](parameters, dtype, *shapes)
    plain = partial(OPS[operation.type].function, **parameters)
    return operands, native_ops.fixed(plain, run, dtype, *shapes)


def _parameters(match: Match, operands: Sequence[str]) -> dict:
    """The op's parameters besides its operands."""
    constants, op = match.graph.constants, OPS[match.last.type]
    found: dict[str, Any] = {}
    for key, items in match.last.inputs.items():
        if key in operands:
            continue
        value = constants.find(items[0])
        if value is None:
            raise Unfit(f"{key} is known at run time only")
        found[key] = constants.plain(key, value) if key in op.static else constants.tensor(value)
    return found


def _softmax(parameters: dict, dtype: torch.dtype, shape: Shape) -> Callable:
    if parameters.get("axis", -1) not in (-1, len(shape) - 1):
        raise Unfit("it goes over another axis than the last")
    if prod(shape) > SMALL:
        raise Unfit(f"more than {SMALL} elements")
    return native_ops.softmax(shape, dtype)


def _layer_norm(parameters: dict, dtype: torch.dtype, shape: Shape) -> Callable:
    axes = sorted(axis % len(shape) for axis in parameters.get("axes", range(len(shape))))
    if not axes or axes != [*range(axes[0], axes[-1] + 1)]:
        raise Unfit("its axes are not neighbours")
    if prod(shape) > SMALL:
        raise Unfit(f"more than {SMALL} elements")
    gamma, beta = parameters.get("gamma"), parameters.get("beta")
    sizes = [shape[axis] for axis in axes]  # compiled code reads as many factors
    for factor in (gamma, beta):
        if factor is not None and ([*factor.shape] != sizes or not factor.is_floating_point()):
            raise Unfit(f"gamma or beta has not the shape {sizes}, or is not of floats")
    epsilon = parameters.get("epsilon", 1e-5)
    return native_ops.layer_norm(shape, dtype, range(axes[0], axes[-1] + 1), gamma, beta, epsilon)


def _matmul(parameters: dict, dtype: torch.dtype, x: Shape, y: Shape) -> Callable:
    transpose_y = parameters.get("transpose_y", False)
    if parameters.get("transpose_x") or min(len(x), len(y)) < 2 or x[:-2] != y[:-2]:
        raise Unfit("x is transposed, or broadcast")
    inner = y[-1] if transpose_y else y[-2]
    if x[-2] > FEW_ROWS or inner != x[-1]:
        raise Unfit(f"more than {FEW_ROWS} rows, or sizes that differ")
    return native_ops.batch_matmul(x, y, transpose_y, dtype)


SMALL_OPS: dict[str, Callable[..., Callable]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
}
