"""Prepare a MIL program for fp16: bound its masks, and pick the ops that must stay in fp32.

coremltools' fp16 pass rounds every real number of a program to fp16, whose largest number is 65,504
and which is exact for integers only up to 2,048. Two kinds of values do not survive that.

Masks: exporters hide a position from a softmax by adding a number far below any score, -1e9 or
float32's least (-3.4e38). In fp16 that is -inf; 0 * -inf is NaN, and so is a softmax of nothing but
-inf. `bound_masks` replaces such numbers by ones within fp16's range.

Integers that are computed as real numbers, as in Cast, Floor, Cast: `is_half` tells coremltools'
pass to leave them in fp32.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from mlprogram.onnx.graph.ops._common import Var, is_bool, is_float, is_int, mb
import numpy as np

LARGEST = 65504.0  # the largest fp16 number
INFINITE = 1e38  # coremltools turns larger numbers to infinity in fp16; no model computes with them

#: The magnitude of a mask. Two masks and a score of up to 5,504 add up to a number within fp16, so
#: nothing becomes infinite that may be multiplied by zero.
MASKED = 30000.0
#: Lower bound of a softmax's input if something was added to a mask. In a row in which everything
#: is hidden, all positions are then equal, as they are in fp32, where the mask swallows the score.
FLOOR = -20000.0
#: If two masks, or infinity, may be added at one position, FLOOR would make one mask equal to two.
#: Then a score of up to this size is removed from a position with one mask instead.
SCORE = 5000.0

#: Integers up to this size are exact in fp16.
EXACT = 2048

#: Ops from which masks hide positions.
HIDDEN_FROM = {"softmax", "exp", "reduce_max"}
VIEWS = {
    "band_part", "cast", "concat", "expand_dims", "gather", "gather_along_axis", "gather_nd",
    "identity", "pad", "reshape", "reverse", "scatter", "scatter_along_axis", "scatter_nd",
    "slice_by_index", "slice_by_size", "split", "squeeze", "stack", "tile", "transpose",
}  # fmt: skip
SUMS = {"add", "sub", "mul", "real_div", "select", "maximum", "minimum", "clip"}
BOUNDS = {"maximum", "minimum", "clip"}  # here a number beyond fp16 has no effect
ORDERS = {"greater", "greater_equal", "less", "less_equal"}
COMPARISONS = {"equal", "not_equal"} | ORDERS
ELEMENTWISE = SUMS | COMPARISONS | {
    "abs", "acos", "asin", "atan", "ceil", "cos", "cumsum", "erf", "exp", "exp2", "floor",
    "floor_div", "inverse", "log", "mod", "pow", "relu", "round", "rsqrt", "sign", "sin", "sqrt",
    "square", "tan",
}  # fmt: skip
REDUCTIONS = {f"reduce_{name}" for name in ("sum", "mean", "max", "min", "prod", "sum_square")}
PRODUCTS = {"matmul", "linear", "conv"}


def _operands(op) -> Iterator[tuple[str, Var]]:
    """The inputs of an op with their names in MIL."""
    for name, given in op.inputs.items():
        for x in given if isinstance(given, list | tuple) else [given]:
            if x is not None:
                yield name, x


def _is_number(x: Var) -> bool:
    """Whether a value is a real constant, of any shape."""
    return x.val is not None and x.dtype is not None and np.asarray(x.val).dtype.kind == "f"


# --- masks


class Hidden(NamedTuple):
    """What is known about the masks in a value.

    masks: how many masks may be added up in it; infinite: whether one of them is infinity. moved:
    whether anything else was added to them, or multiplied with them.
    """

    masks: int = 0
    infinite: bool = False
    moved: bool = False


def bound_masks(function) -> None:
    """Replace constants beyond fp16's range by ones within it, in place; infinity stays.

    Constants that mask a softmax's input become `MASKED` with their sign, or `LARGEST` in a minimum
    or maximum. Those that such values are compared with become `MASKED`, or -`FLOOR` if the
    comparison is of order. Others change only if coremltools would make them infinite.
    """
    read: set[Var] = set()  # values that a softmax's input is a sum, multiple or selection of
    for op in reversed(list(function.operations)):
        if op.op_type in HIDDEN_FROM:
            read.add(op.x)
        elif read.intersection(op.outputs):
            read.update(_summands(op))
    whole = _of_whole_numbers(function)
    hidden: dict[Var, Hidden] = {}
    with function:
        for op in list(function.operations):
            if op.op_type == "softmax":
                _keep_even(op, hidden.get(op.x, Hidden()))
            elif read.intersection(op.outputs):
                summands = [x for x in _summands(op) if not _is_scale(op, x, whole)]
                parts = [_of_number(x) or hidden.get(x, Hidden()) for x in summands]
                hidden |= dict.fromkeys(op.outputs, _joined(op.op_type, parts))
                limit = LARGEST if op.op_type in BOUNDS else MASKED
                for x in filter(_is_number, summands):
                    _bound(x, limit, limit)
        for op in list(function.operations):  # what masks are compared with, and the infinite
            reads = [x for _, x in _operands(op)] if op.op_type != "const" else []
            beyond, limit = INFINITE, LARGEST
            if op.op_type in COMPARISONS and read.intersection(reads):
                beyond, limit = MASKED, -FLOOR if op.op_type in ORDERS else MASKED
            for x in filter(_is_number, reads):
                _bound(x, beyond, limit)


def _summands(op) -> list[Var]:
    """The real inputs that an op's result is a view, selection, sum or multiple of."""
    if op.op_type in VIEWS:
        names = {"x", "values", "data", "updates", "constant_val"}
    elif op.op_type in SUMS:
        names = {"x", "a", "b"} if op.op_type == "real_div" else {"x", "y", "a", "b"}
    else:
        return []
    return [x for name, x in _operands(op) if name in names and is_float(x)]


def _of_number(x: Var) -> Hidden | None:
    """What a constant masks; None if the value is not a real constant."""
    if not _is_number(x):
        return None
    sizes = np.abs(x.val)
    return Hidden(int((np.isfinite(sizes) & (sizes > -FLOOR)).any()), bool(np.isinf(sizes).any()))


def _joined(op: str, parts: list[Hidden]) -> Hidden:
    """What masks an op's result, from what masks its inputs."""
    masks = [part.masks for part in parts]
    count = sum(masks) if op in ("add", "sub") else max(masks, default=0)
    moved = count > 0 and op in ("add", "sub", "mul", "real_div")
    infinite = any(part.infinite for part in parts)
    return Hidden(count, infinite, moved or any(part.moved for part in parts))


def _keep_even(softmax, hidden: Hidden) -> None:
    """Bound a softmax's input below, so that scores make no difference between hidden positions."""
    if not (hidden.masks and hidden.moved):
        return
    block, (old,), x = softmax.enclosing_block, softmax.outputs, softmax.x
    if hidden.masks == 1 and not hidden.infinite:
        x = mb.maximum(x=x, y=np.float32(FLOOR), before_op=softmax)
    else:
        low = mb.add(x=x, y=np.float32(MASKED - SCORE), before_op=softmax)
        low = mb.clip(x=low, alpha=np.float32(-2 * SCORE), beta=np.float32(0), before_op=softmax)
        x = mb.sub(x=x, y=low, before_op=softmax)
    made = mb.softmax(x=x, axis=softmax.axis, before_op=softmax)
    block.replace_uses_of_var_after_op(anchor_op=softmax, old_var=old, new_var=made)
    block.remove_ops([softmax])
    made.name = old.name


def _is_scale(op, y: Var, whole: set[Var]) -> bool:
    """Whether y is a positive constant factor of real numbers: it scales scores, and masks none."""
    if op.op_type not in ("mul", "real_div") or not _is_number(y) or np.max(y.val) >= INFINITE:
        return False
    return np.min(y.val) > 0 and not whole.intersection(x for _, x in _operands(op))


def _bound(x: Var, beyond: float, limit: float) -> None:
    """Replace finite numbers of a magnitude above `beyond` by `limit` with their sign."""
    if not np.size(x.val) or max(np.max(x.val), -np.min(x.val)) <= beyond:
        return  # before np.abs below copies a large matrix
    large = np.isfinite(x.val) & (np.abs(x.val) > beyond)
    if not large.any():
        return
    value = np.where(large, np.copysign(np.float32(limit), x.val), x.val).astype(np.float32)
    made = mb.const(val=value[()], before_op=x.op)
    x.op.enclosing_block.replace_uses_of_var_after_op(anchor_op=x.op, old_var=x, new_var=made)


# --- whole numbers


def is_half() -> Callable[[Any], bool]:
    """Return a predicate that says whether coremltools may let an op compute in fp16.

    It may not if integers are computed from integers by way of real numbers, nor if an op is the
    first one to read an integer as a real number and that may be larger than EXACT. Use a new
    predicate for each program: it caches what it finds about one.
    """
    kept_single = cache(lambda block: set(_kept_single(block)))
    return lambda op: op not in kept_single(op.enclosing_block)


def _kept_single(block) -> Iterator:
    whole = _of_whole_numbers(block)
    small = _small(block)
    needed: set[Var] = set()
    for op in reversed(list(block.operations)):
        reads = [x for _, x in _operands(op) if not _is_number(x)]
        if op.op_type == "cast":
            if is_int(op.outputs[0]) and op.outputs[0] not in small and op.x in whole:
                needed.add(op.x)
            continue
        if needed.intersection(op.outputs):
            needed.update(x for x in reads if is_float(x))
            yield op
        elif op.op_type in ELEMENTWISE and (large := {x for x in reads if _is_large(x, small)}):
            needed |= large
            yield op


def _is_large(x: Var, small: set[Var]) -> bool:
    """Whether a real value is an integer, looking through views, that may exceed EXACT."""
    op = x.op
    while op is not None and op.op_type in VIEWS - {"cast"} and "x" in op.inputs:
        op = op.x.op
    is_cast = op is not None and op.op_type == "cast" and is_float(op.outputs[0])
    return is_cast and is_int(op.x) and op.x not in small


def _of_whole_numbers(block) -> set[Var]:
    """The real values that are computed from integers and booleans alone."""
    found: set[Var] = set()
    for op in block.operations:
        reads = [x for _, x in _operands(op) if is_float(x)]
        unknown = [x for x in reads if not _is_number(x)]
        if op.op_type == "cast":
            made = not is_float(op.x)
        elif op.op_type in PRODUCTS:
            known = [x.val for x in reads if _is_number(x)]
            made = all(np.array_equal(a, np.round(a)) for a in known)
        else:
            made = op.op_type in ELEMENTWISE | REDUCTIONS | VIEWS
        if made and (op.op_type == "cast" or unknown) and found.issuperset(unknown):
            found.update(x for x in op.outputs if is_float(x))
    return found


def _small(block) -> set[Var]:
    """The integers that are exact in fp16: from booleans, from a clip, or modulo a small number."""
    found: set[Var] = set()
    for op in block.operations:
        if op.op_type == "cast":
            clip = op.x.op
            clipped = clip is not None and clip.op_type == "clip"
            clipped = clipped and max(abs(clip.alpha.val), abs(clip.beta.val)) <= EXACT
            small = is_bool(op.x) or op.x in found or clipped
        elif op.op_type == "mod":
            small = op.y.val is not None and np.abs(op.y.val).max() <= EXACT
        elif op.op_type in VIEWS | {"select"}:
            reads = [x for _, x in _operands(op) if is_int(x) and x.val is None]
            small = bool(reads) and found.issuperset(reads)
        else:
            small = False
        if small:
            found.update(op.outputs)
    return found
