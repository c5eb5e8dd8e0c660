"""Tensors of more than Core ML's five axes, which exporters write for `nn.Unfold` or patch windows.

Such a tensor is represented as a `reshape` of one with at most five axes. An operation on it merges
axes, computes with at most five, and returns another `reshape`. `reshaped` looks through a
`reshape`, so that none with more axes is used in the end, and coremltools drops those. An operation
that does not keep to this is refused (`few_axes`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from math import prod

from mlprogram.onnx.graph.ops import Unsayable
from mlprogram.onnx.graph.ops._common import (
    MOST_AXES,
    Tensor,
    check_tensor,
    mb,
    rank,
    reshaped,
    shape_of,
)
import numpy as np

#: Elementwise operators, which broadcast.
EACH_NUMBER = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Floor",
    "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where",
}  # fmt: skip


def is_high(*tensors: Tensor | None) -> bool:
    return any(x is not None and rank(x) > MOST_AXES for x in tensors)


def transposed(x: Tensor, perm: list[int]) -> Tensor:
    """x with its axes in the order `perm`."""
    sizes = shape_of(x)
    if len(sizes) <= MOST_AXES:
        return mb.transpose(x=x, perm=perm)
    runs = _runs(sizes, perm)  # from here on each run is one axis
    blocks = {run[0]: prod(sizes[axis] for axis in run) for run in runs}
    order = sorted(blocks)
    if len(order) <= MOST_AXES:
        x = reshaped(x, [blocks[axis] for axis in order])
        x = mb.transpose(x=x, perm=[order.index(run[0]) for run in runs])
        return reshaped(x, [sizes[axis] for axis in perm])
    lead = 1  # the product of the axes that are already in place
    for axis, *_ in runs:
        place = order.index(axis)
        if place:
            before, after = split_at([blocks[a] for a in order], place)
            x = reshaped(x, [lead, prod(before), blocks[axis], prod(after)])
            x = mb.transpose(x=x, perm=[0, 2, 1, 3])
        lead *= blocks[axis]
        order.remove(axis)
    return reshaped(x, [sizes[axis] for axis in perm])


def split_at(sizes: list[int], place: int) -> tuple[list[int], list[int]]:
    """The sizes before axis `place`, and those after it."""
    return sizes[:place], sizes[place + 1 :]


def _runs(sizes: list[int], perm: list[int]) -> list[list[int]]:
    """Group the axes in the order of `perm` into runs that stay adjacent; skip axes of size 1."""
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    follows = dict(pairwise(long))
    runs: list[list[int]] = []
    for axis in (axis for axis in perm if sizes[axis] != 1):
        if runs and follows.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs or [[0]]


def on_axis(
    x: Tensor, axis: int, change: Callable[[Tensor], Tensor], new: list[int] | None = None
) -> Tensor:
    """Apply `change` to axis 1 of x seen as three axes: those before `axis`, itself, those after.

    new: the sizes of the axes that replace `axis`; by default the one that `change` returns.
    """
    before, after = split_at(shape_of(x), axis)
    made = change(reshaped(x, [prod(before), int(x.shape[axis]), prod(after)]))
    return reshaped(made, [*before, *([int(made.shape[1])] if new is None else new), *after])


def with_few_axes(function: Callable, tensors: list[Tensor | None]) -> Tensor:
    """Apply an elementwise function that broadcasts, after merging axes.

    Adjacent axes merge if each tensor has either all of them or none (sizes of 1).
    """
    shapes = [[] if x is None else shape_of(x) for x in tensors]
    whole = np.broadcast_shapes(*map(tuple, shapes))
    shapes = [[1] * (len(whole) - len(shape)) + shape for shape in shapes]
    groups: list[tuple[list[bool], list[int]]] = []
    for axis in (axis for axis, size in enumerate(whole) if size != 1):
        kind = [shape[axis] == 1 for shape in shapes]
        if groups and groups[-1][0] == kind:
            groups[-1][1].append(axis)
        else:
            groups.append((kind, [axis]))
    seen = [
        reshaped(x, [prod(shape[axis] for axis in axes) for _, axes in groups] or [1])
        if x is not None and rank(x)
        else x
        for x, shape in zip(tensors, shapes, strict=True)
    ]
    return reshaped(function(*seen), list(whole))


@contextmanager
def few_axes() -> Iterator[None]:
    """Raise Unsayable if an op that is built in this context has to do with more than MOST_AXES, or
    gives a tensor of a size that there is not."""
    from coremltools.converters.mil.mil.block import curr_block

    operations = curr_block().operations
    before = len(operations)
    yield
    for operation in islice(reversed(operations), len(operations) - before):
        for x in operation.outputs:
            check_tensor(*shape_of(x))
        if operation.op_type in ("reshape", "const"):
            continue
        for x in [*operation.get_flattened_inputs(), *operation.outputs]:
            if is_high(x):
                raise Unsayable(f"tensors of more than {MOST_AXES} axes, as {tuple(shape_of(x))}")
