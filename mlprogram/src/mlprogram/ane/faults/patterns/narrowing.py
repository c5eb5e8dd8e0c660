"""Faults of the converter's passes that narrow a program to 16 bits, as packages show them."""

from collections.abc import Iterator

from mlprogram.ane.faults.patterns.known import (
    Item,
    each,
    made_by,
    nonnegative,
    number,
    shape_of,
    size_of,
)
from mlprogram.ane.laws.graph import VIEWS, ProgramGraph, Seen
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import numpy as np

GATHERS = ("gather", "gather_along_axis", "gather_nd")
TINY = float(np.finfo(np.float16).smallest_subnormal)  # 2 to the -24
#: Ops that hand a mask on to a softmax.
HANDED_ON = VIEWS | {"add", "cast", "identity"}
#: What makes integers that 16 bits hold: positions, or truth values.
SMALL = ("argsort", "topk", "reduce_argmax", "reduce_argmin", "shape", "non_zero", "one_hot")


def sentinel_added(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "softmax"):
        total = made_by(graph, operation, "x", "add")
        masks = [graph.constant(graph.item(total, key)) for key in "xy"] if total else []
        axis = _axis_from_end(graph, operation)
        if any(mask and _hides_rows(mask, axis) for mask in masks):
            yield Seen("a softmax of rows to which -inf is added throughout", operation)


def _hides_rows(mask: Constant, axis: int) -> bool:
    """Whether all along an axis, counted from the end, is -inf anywhere."""
    if mask.type.dtype != "fp16" or not mask.type.shape:
        return False
    return _all_along(np.isneginf(mask.array()), axis)


def _all_along(hidden: np.ndarray, axis: int) -> bool:
    return bool((hidden.all(axis=axis) if -hidden.ndim <= axis < 0 else hidden).any())


def _axis_from_end(graph: ProgramGraph, softmax: Operation) -> int:
    axis = number(graph, softmax, "axis")
    axis = axis if isinstance(axis, int) else -1
    return axis - len(shape_of(graph, softmax, "x")) if axis >= 0 else axis


def sentinel_selected(graph: ProgramGraph) -> Iterator[Seen]:
    """A select of -inf, on its way to a softmax, that may hide rows throughout."""
    for operation in each(graph, "select"):
        branches = [graph.constant(graph.item(operation, key)) for key in "ab"]
        if operation.outputs[0][1].dtype != "fp16":
            continue
        if any(one and np.isneginf(one.array()).any() for one in branches):
            softmaxes = _softmaxes(graph, operation)
            if any(_may_hide(graph, operation, branches, one) for one in softmaxes):
                yield Seen("a select of -inf for what is hidden, rows throughout too", operation)


def _softmaxes(graph: ProgramGraph, operation: Operation) -> Iterator[Operation]:
    """Those that a result reaches by sums, casts and views alone."""
    seen, ops = set(), [operation]
    for op in ops:
        for reader in graph.readers.get(op.outputs[0][0], ()):
            if reader.type == "softmax":
                yield reader
            elif reader.type in HANDED_ON and reader.outputs[0][0] not in seen:
                seen.add(reader.outputs[0][0])
                ops.append(reader)


def _may_hide(
    graph: ProgramGraph, select: Operation, branches: list[Constant | None], softmax: Operation
) -> bool:
    """Whether a row may be -inf throughout: of a constant condition, whether one is."""
    cond = graph.constant(graph.item(select, "cond"))
    if cond is None:
        return True
    a, b = (np.zeros(()) if one is None else one.array() for one in branches)
    hidden = np.isneginf(np.where(cond.array().astype(bool), a, b))
    return _all_along(hidden, _axis_from_end(graph, softmax))


def sentinel_multiplied(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "mul"):
        if operation.outputs[0][1].dtype != "fp16":
            continue
        for key in "xy":
            factor = graph.constant(graph.item(operation, key))
            if factor and factor.type.dtype == "fp16" and np.isinf(factor.array()).any():
                yield Seen("a product with infinity, which is not a number at 0", operation)


def unsigned_data(graph: ProgramGraph) -> Iterator[Seen]:
    for operation, cast in _narrowed(graph, "uint16", (*GATHERS, "squeeze")):
        if not nonnegative(graph, graph.item(cast, "x")):
            yield Seen(f"a {operation.type} of numbers that become uint16", operation)


def gather_narrowed(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _wrapping(graph, GATHERS)


def squeeze_narrowed(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _wrapping(graph, ("squeeze",))


def _wrapping(graph: ProgramGraph, types: tuple[str, ...]) -> Iterator[Seen]:
    """Data of int32, which may be beyond 16 bits, that is cast to int16 for an op."""
    for operation, cast in _narrowed(graph, "int16", types):
        source = graph.item(cast, "x")
        type_ = graph.type(source)
        if type_ is not None and type_.dtype == "int32" and not _small(graph, source):
            yield Seen(f"a {operation.type} of int32 that become int16", operation)


def _narrowed(
    graph: ProgramGraph, dtype: str, types: tuple[str, ...]
) -> Iterator[tuple[Operation, Operation]]:
    """Ops whose data is cast to `dtype` for them, and cast back after, with that cast."""
    for operation in graph.operations:
        cast = made_by(graph, operation, "x", "cast")
        if operation.type in types and cast and cast.outputs[0][1].dtype == dtype:
            yield operation, cast


def _small(graph: ProgramGraph, item: Item) -> bool:
    """Whether 16 bits hold integers, as far as the op that made them tells."""
    maker = graph.maker(item)
    if maker is None:
        return False
    if maker.type == "cast":
        type_ = graph.type(graph.item(maker, "x"))
        return type_ is not None and type_.dtype in ("bool", "int8", "uint8", "int16")
    return maker.type in SMALL


def topk_positions(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "topk"):
        dtype = operation.outputs[-1][1].dtype
        if dtype not in ("int16", "uint16") or len(operation.outputs) < 2:
            continue
        axis = number(graph, operation, "axis")
        size = size_of(graph, operation, "x", axis if isinstance(axis, int) else -1)
        if size - 1 > np.iinfo(dtype).max:
            yield Seen(f"positions among {size:,} in {dtype}", operation)


def mask_overflows(graph: ProgramGraph) -> Iterator[Seen]:
    """What is computed in fp32, since its constant is beyond fp16, and cast to fp16 after."""
    for operation in each(graph, "softmax"):
        for cast in _casts_before(graph, operation):
            made = graph.maker(graph.item(cast, "x"))
            if made is None or made.type not in ("add", "mul", "select"):
                continue
            keys = "ab" if made.type == "select" else "xy"
            constants = [graph.constant(graph.item(made, key)) for key in keys]
            if any(constant and _beyond(constant) for constant in constants):
                yield Seen("a mask in fp32 that becomes -inf in fp16", cast)


def _casts_before(graph: ProgramGraph, softmax: Operation) -> Iterator[Operation]:
    """Casts to fp16 of what a softmax takes, or of a term of it."""
    if cast := made_by(graph, softmax, "x", "cast"):
        yield cast
    elif total := made_by(graph, softmax, "x", "add"):
        casts = [made_by(graph, total, key, "cast") for key in "xy"]
        yield from (one for one in casts if one and one.outputs[0][1].dtype == "fp16")


def _beyond(constant: Constant) -> bool:
    lowest = constant.array().min(initial=0) if constant.type.dtype == "fp32" else 0
    return bool(np.isfinite(lowest) and lowest < np.finfo(np.float16).min)


def constant_raised(graph: ProgramGraph) -> Iterator[Seen]:
    """What is nearer to zero than any number of fp16 becomes its smallest, 6e-8."""
    for operation in each(graph, "mul"):
        for key in "xy":
            factor = graph.constant(graph.item(operation, key))
            if factor is None or factor.type.dtype != "fp16":
                continue
            array = factor.array()
            if array.size and np.all(np.abs(array) == TINY):
                yield Seen(f"a product with {TINY:.1g}, fp16's smallest number", operation)
