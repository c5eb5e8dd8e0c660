"""What a graph tells of its values without running: signs, sizes, the systems it is written for."""

from collections.abc import Container, Iterator

from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant, TensorType

Item = str | Constant | None


def nonnegative(graph: ProgramGraph, item: Item) -> bool:
    """Whether no number of a value can be negative, as far as its makers tell."""
    return item is not None and graph.facts.of(item)[0] >= 0


def each(graph: ProgramGraph, *types: str) -> Iterator[Operation]:
    """The ops of some types, constants apart, in program order."""
    return among(graph, types)


def among(graph: ProgramGraph, types: Container[str]) -> Iterator[Operation]:
    """The ops of a set of types, constants apart, in program order."""
    return (operation for operation in graph.operations if operation.type in types)


def made_by(graph: ProgramGraph, operation: Operation, key: str, type_: str) -> Operation | None:
    """The op of a type that made an input; None if another did."""
    maker = graph.maker(graph.item(operation, key))
    return maker if maker is not None and maker.type == type_ else None


def shape_of(graph: ProgramGraph, operation: Operation, key: str) -> tuple[int | None, ...]:
    """The sizes of an input; () if it is absent."""
    type_ = graph.type(graph.item(operation, key))
    return () if type_ is None else type_.shape


def size_of(graph: ProgramGraph, operation: Operation, key: str, axis: int) -> int:
    """One size of an input; 0 if it is flexible, or there is no such axis."""
    shape = shape_of(graph, operation, key)
    return (shape[axis] or 0) if -len(shape) <= axis < len(shape) else 0


def numbers(graph: ProgramGraph, operation: Operation, key: str) -> list:
    """The numbers of a constant input, one alone too; [] if it is absent or computed."""
    constant = graph.constant(graph.item(operation, key))
    return [] if constant is None else constant.array().reshape(-1).tolist()


def number(graph: ProgramGraph, operation: Operation, key: str) -> float | None:
    """The number of a constant input; None if there is none, or several."""
    found = numbers(graph, operation, key)
    return found[0] if len(found) == 1 else None


def flexible(type_: TensorType | None) -> bool:
    return type_ is not None and None in type_.shape


def integers(type_: TensorType | None) -> bool:
    return type_ is not None and type_.dtype.startswith(("int", "uint"))
