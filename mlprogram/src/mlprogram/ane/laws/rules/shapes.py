"""Rules on shapes: layout, alignment, rank, size of axes and kernels."""

from collections.abc import Iterator

from mlprogram.ane import claims
from mlprogram.ane.laws.graph import FLOATS, ProgramGraph, Seen, sizes
from mlprogram.package.function import Operation
from mlprogram.package.values import ITEMSIZE, TensorType


def layout_channels(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        weight = graph.weight(operation)
        if weight and operation.type in ("linear", "matmul"):
            yield Seen(f"a {operation.type} with a weight of {sizes(weight.type.shape)}", operation)


def last_axis_padding(graph: ProgramGraph, alignment: int) -> Iterator[Seen]:
    for operation, name, type_ in _visible(graph):
        if _upright(type_):
            times = alignment // ITEMSIZE[type_.dtype]
            named = repr(name) if name else "the result"
            text = f"{named} is {type_}, which takes {times} times its memory"
            yield Seen(text, operation)


def last_axis_short(graph: ProgramGraph, least: int) -> Iterator[Seen]:
    narrow: dict[int, list[str]] = {}
    for operation, name, type_ in _visible(graph):
        if operation is None and len(type_.shape) > 1 and not _upright(type_):
            size = type_.shape[-1] or least
            narrow.setdefault(size, []).append(repr(name))
    for size, names in narrow.items():
        if size < least:
            yield Seen(f"{size} in {', '.join(names)}")


def _visible(graph: ProgramGraph) -> Iterator[tuple[Operation | None, str, TensorType]]:
    """Yield (op, name, type) of the function's inputs and outputs and of convolutions' results."""
    function = graph.function
    for name, type_ in (function.inputs | graph.outputs).items():
        if type_.kind == "tensor" and type_.dtype in FLOATS:
            yield None, name, type_
    for operation in graph.operations:
        for name, type_ in operation.outputs[:1] if operation.type == "conv" else ():
            if name not in graph.outputs and type_.dtype in FLOATS:
                yield operation, "", type_


def _upright(type_: TensorType) -> bool:
    """Whether the last axis has size 1, with the positions in the axis before it."""
    shape = type_.shape
    return len(shape) > 2 and shape[-1] == 1 and (shape[-2] or 2) > 1


def rank_most(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation in graph.operations:
        for _, type_ in operation.outputs:
            if len(type_.shape) > most:
                yield Seen(f"{len(type_.shape)} axes, {sizes(type_.shape)}", operation)
                break


def axis_most(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation in graph.operations:
        longest = _longest(graph, operation)
        if longest > most:
            yield Seen(f"an axis of {longest:,}", operation)


def axis_habit(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation in graph.operations:
        longest = _longest(graph, operation)
        if graph.weight(operation) and most < longest <= claims.find("axis-most").number:
            yield Seen(f"an axis of {longest:,}", operation)


def _longest(graph: ProgramGraph, operation: Operation) -> int:
    """The longest axis of an op's result; for a weighted op, its output channels count too."""
    shapes = [type_.shape for _, type_ in operation.outputs if type_.dtype in FLOATS]
    weight = graph.weight(operation)
    if weight:
        shapes.append((weight.type.shape[weight.outputs],))
    return max((size or 1 for shape in shapes for size in shape), default=1)


def matmul_depth(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation in graph.operations:
        weight = graph.weight(operation)
        depth = weight.depth if weight else 0
        if operation.type == "matmul" and not weight:
            x = graph.type(graph.item(operation, "x"))
            shape = (1, *(x.shape if x else ()))
            depth = shape[-2 if graph.value(operation, "transpose_x", False) else -1] or 0
        if depth > most:
            yield Seen(f"sums of {depth:,} terms", operation)


def conv_width(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation, height, width in _kernels(graph):
        if width > most and not height == width == most + 1:
            yield Seen(f"a kernel of {height} x {width}", operation)


def conv_height(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation, height, width in _kernels(graph):
        if height > most:
            yield Seen(f"a kernel of {height} x {width}", operation)


def conv_square(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation, height, width in _kernels(graph):
        if height == width == most:
            yield Seen(f"a kernel of {height} x {width}", operation)


def _kernels(graph: ProgramGraph) -> Iterator[tuple[Operation, int, int]]:
    """Yield convolutions with their kernel's height and width; a 1-D kernel has height 1."""
    for operation in graph.operations:
        if operation.type in ("conv", "conv_transpose"):
            weight = graph.type(graph.item(operation, "weight"))
            kernel = (1, 1, *(size or 1 for size in (weight.shape[2:] if weight else ())))
            yield operation, kernel[-2], kernel[-1]


def max_pool(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    for operation in graph.operations:
        kernel = graph.value(operation, "kernel_sizes")
        if operation.type == "max_pool" and isinstance(kernel, list) and kernel[-1] > most:
            yield Seen(f"windows of {sizes(tuple(kernel))}", operation)


RULES = (
    layout_channels, last_axis_padding, last_axis_short, rank_most, axis_most, axis_habit,
    matmul_depth, conv_width, conv_height, conv_square, max_pool,
)  # fmt: skip
