"""Rules on RMSNorm, whose plain forms overflow in half precision or lose eps."""

from collections.abc import Iterator

from mlprogram.ane.laws.graph import ProgramGraph, Seen
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant

MEANS = ("reduce_mean", "reduce_sum")
NEAR = 4  # ops between the mean of squares and its root


def norm_eps(graph: ProgramGraph, _) -> Iterator[Seen]:
    for mean, squared in _means_of_squares(graph):
        if _divided_by_largest(graph, squared) and _rooted(graph, mean):
            yield Seen("an RMSNorm of x / max|x|, with eps as it was", mean)


def norm_squares(graph: ProgramGraph, _) -> Iterator[Seen]:
    for mean, squared in _means_of_squares(graph):
        half = mean.outputs[0][1].dtype == "fp16"
        if half and not _scaled(graph, squared) and _rooted(graph, mean):
            yield Seen("a norm that squares its input as it comes", mean)


def _means_of_squares(graph: ProgramGraph) -> Iterator[tuple[Operation, str | Constant | None]]:
    """Yield ops that compute a mean or sum of squares, with the value that is squared."""
    for operation in graph.operations:
        if operation.type == "reduce_sum_square":
            yield operation, graph.item(operation, "x")
        elif operation.type in MEANS:
            maker = graph.maker(graph.item(operation, "x"))
            if maker is not None and (squared := _squared(graph, maker)):
                yield operation, squared


def _squared(graph: ProgramGraph, operation: Operation) -> str | None:
    x, y = graph.item(operation, "x"), graph.item(operation, "y")
    alike = operation.type == "mul" and x == y
    power = operation.type == "pow" and graph.value(operation, "y") == 2
    return x if isinstance(x, str) and (operation.type == "square" or alike or power) else None


def _rooted(graph: ProgramGraph, operation: Operation) -> bool:
    """Whether a root is taken of the result within NEAR ops, as in a norm."""
    names = [name for name, _ in operation.outputs]
    for _ in range(NEAR):
        readers = [reader for name in names for reader in graph.readers.get(name, ())]
        if any(reader.type in ("rsqrt", "sqrt", "pow") for reader in readers):
            return True
        names = [name for reader in readers for name, _ in reader.outputs]
    return False


def _divided_by_largest(graph: ProgramGraph, name: str | Constant | None) -> bool:
    """Whether a value is divided by reduce_max(abs(..)), as in x / max|x|."""
    maker = graph.maker(name)
    if maker is None or maker.type != "real_div":
        return False
    largest = graph.maker(graph.item(maker, "y"))
    inner = graph.maker(graph.item(largest, "x")) if largest else None
    return bool(largest and largest.type == "reduce_max" and inner and inner.type == "abs")


def _scaled(graph: ProgramGraph, name: str | Constant | None) -> bool:
    """Whether a value was scaled down: by a division, or by a constant factor below 1."""
    maker = graph.maker(name)
    if maker is None or maker.type not in ("mul", "real_div"):
        return False
    if maker.type == "real_div":
        return True
    factors = [graph.constant(graph.item(maker, key)) for key in ("x", "y")]
    return any(c is not None and c.type.shape == () and abs(c.value) < 1 for c in factors)


RULES = (norm_eps, norm_squares)
