"""Faster functions for single ops whose weights or shapes are known at load.

Products with constant weights read them as the package stores them (`products.py`). Small softmax,
layer norm and batched products run compiled in one thread, which takes less time than waking
torch's threads. Functions of each value and rows that indices choose are compiled so that a stretch
goes on (`run/stretches.py`). A transposed tensor is copied at once, not viewed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from mlprogram.kernels import native
from mlprogram.kernels.graph import FLOATS, Graph, Match, Unfit
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.plainly import plainly
from mlprogram.kernels.products import product
from mlprogram.ops import OPS
from mlprogram.package.function import Operation
import torch
from torch import Tensor

INDICES = native.TYPES.keys() - {torch.float32, torch.float16, torch.bool}
SMALL = 1 << 16  # elements of x up to which one thread is enough
FEW_ROWS = native_ops.FEW_ROWS  # with more rows in a batched product, torch is faster

Shape = tuple[int, ...]


def prepare_product(match: Match) -> tuple[list, Callable]:
    """Prepare a product with a constant weight."""
    return match.last.inputs["x"], product(match.graph, match.last)


def prepare_transpose(match: Match) -> tuple[list, Callable]:
    """Prepare `transpose` as a copy, which later ops read faster than a permuted view."""
    perm = match.graph.value(match.last, "perm")
    if perm is None:
        raise Unfit("its axes are known at run time only")
    if _reads_turned(match.graph, match.result):
        raise Unfit("what reads it takes it as it is turned")
    return match.last.inputs["x"], lambda x: x.permute(perm).contiguous()


def prepare_activation(match: Match) -> tuple[list, Callable]:
    """Prepare a function of each value, of floats of any shape."""
    (item,), made = match.last.inputs["x"], match.graph.types[match.result]
    if made.dtype not in FLOATS or match.graph.constants.find(item) is not None:
        raise Unfit("it is of no floats that are computed at run time")
    kind = match.last.type
    if kind == "gelu":
        mode = match.graph.value(match.last, "mode", "EXACT")
        kind = {"EXACT": kind}.get(mode, f"gelu_{mode}".removesuffix("_APPROXIMATION"))
    run = native_ops.activation(native_ops.Activation[kind.upper()])
    dtype, plain = match.graph.constants.dtype(made), plainly(match, [item])

    def call(x: Tensor) -> Tensor:
        return run(x.contiguous()) if x.dtype == dtype and x.numel() else plain(x)

    return [item], call


def prepare_gather(match: Match) -> tuple[list, Callable]:
    """Prepare slices of x along one axis; what lies outside is left to the plain op."""
    operation, graph = match.last, match.graph
    (x,), (indices,) = operation.inputs["x"], operation.inputs["indices"]
    axis = graph.value(operation, "axis", 0)
    if not isinstance(axis, int) or graph.value(operation, "batch_dims", 0) != 0:
        raise Unfit("its axis is known at run time only, or is a list, or it has batch axes")
    wraps = graph.value(operation, "validate_indices") is not True
    plain = plainly(match, [x, indices])

    def call(x: Tensor, indices: Tensor) -> Tensor:
        whole = indices.dtype in INDICES
        if not (whole and -x.dim() <= axis < x.dim() and x.numel() * indices.numel()):
            return plain(x, indices)
        run = native_ops.gather(axis % x.dim(), wraps)
        y = run(x.contiguous(), indices.contiguous())
        return plain(x, indices) if y is None else y

    return [x, indices], call


def prepare_einsum(match: Match) -> tuple[list, Callable]:
    """Prepare the product of x (*B, C, H, W) and y (*B, W, H, U)."""
    graph, items = match.graph, match.last.inputs["values"]
    if why := _why_no_einsum(graph, match.last):
        raise Unfit(why)
    x, y = (graph.types[item].sizes for item in items)
    dtype = graph.constants.dtype(graph.types[match.result])
    run = native_ops.einsum(x, y, _is_turned(graph, items[0]), dtype)
    plain = plainly(match, items)
    return items, native_ops.fixed(plain, run, dtype, x, y, contiguous=False)


def _why_no_einsum(graph: Graph, operation: Operation) -> str:
    """Why an einsum has no kernel; "" if it has one."""
    names, made = operation.inputs["values"], operation.outputs[0][1]
    x, y = (graph.shape(name) for name in names)
    if x is None or y is None or any(graph.types[name].dtype != made.dtype for name in names):
        return "a shape is open, or it is no float that is computed at run time"
    if x[:-3] != y[:-3] or (x[-1], x[-2]) != (y[-3], y[-2]):
        return "axes are broadcast"
    if y[-1] > FEW_ROWS and (prod(x[:-3]) != 1 or native.several_by_torch()):
        return f"there are more than {FEW_ROWS} columns, and a batch or torch's vectors"
    return ""


def _is_turned(graph: Graph, name: str) -> bool:
    """Whether a value is a transposed one, or a part of it, whose axes -1 and -3 trade places."""
    maker, _ = graph.maker.get(name, (None, 0))
    if maker is not None and maker.type == "split":
        maker, _ = graph.maker.get(maker.inputs["x"][0], (None, 0))
    perm = graph.value(maker, "perm") if maker is not None and maker.type == "transpose" else None
    return perm is not None and perm == [*range(len(perm) - 3), *range(len(perm))[:-4:-1]]


def _reads_turned(graph: Graph, name: str) -> bool:
    """Whether all that read a value, or parts of it, are einsums that take it as it is turned."""
    readers = [graph.position.get(user) for user in graph.users.get(name, [])]
    return bool(readers) and all(
        at is not None and _takes_turned(graph, graph.operations[at], name) for at in readers
    )


def _takes_turned(graph: Graph, operation: Operation, name: str) -> bool:
    if operation.type == "split":
        return all(_reads_turned(graph, part) for part, _ in operation.outputs)
    if operation.type != "einsum" or operation.inputs["values"][0] != name:
        return False
    return _is_turned(graph, name) and not _why_no_einsum(graph, operation)


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
    (axis,) = _counted([parameters.get("axis", -1)], shape)
    if prod(shape) > SMALL:
        raise Unfit(f"more than {SMALL} elements")
    return native_ops.softmax(shape, dtype, axis)


def _counted(axes: Sequence[int], shape: Shape) -> list[int]:
    """Axes counted from the first one; raises Unfit if there is no such axis."""
    if any(not isinstance(axis, int) or not -len(shape) <= axis < len(shape) for axis in axes):
        raise Unfit(f"{shape} has no axis {axes}")
    return [axis % len(shape) for axis in axes]


def _layer_norm(parameters: dict, dtype: torch.dtype, shape: Shape) -> Callable:
    axes = sorted(_counted(parameters.get("axes", range(len(shape))), shape))
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
