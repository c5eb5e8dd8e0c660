"""The def-use graph of a function, and `Match`, the ops in it that fit a pattern."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

from mlprogram.analysis.aliases import origins, uses
from mlprogram.analysis.constants import Constants, Known
from mlprogram.ops.tensor_transformation import slice_of
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import Constant, TensorType
import torch

FLOATS = ("fp16", "fp32")


class Unfit(Exception):
    """A kernel cannot replace a group of ops; the message says why. matched: those that fit."""

    def __init__(self, reason: str, matched: tuple[Operation, ...] = ()):
        super().__init__(reason)
        self.matched = matched


class Graph:
    """The op that makes each value of a function's block, and the ops that use it."""

    def __init__(self, function: Function, constants: Constants):
        block: Block = function.block
        self.constants, self.operations = constants, block.operations
        self.types: dict[str, TensorType] = function.inputs | {
            name: type_ for o in function.operations() for name, type_ in o.outputs
        }
        self.origin = origins(function)
        self.position = {id(o): i for i, o in enumerate(block.operations)}
        self.maker = {
            name: (o, i) for o in block.operations for i, (name, _) in enumerate(o.outputs)
        }
        self.users: dict[str, list[int]] = {name: [-1] for name in block.outputs}
        for operation in block.operations:
            for name in uses(operation):
                self.users.setdefault(name, []).append(id(operation))

    def value(self, operation: Operation, key: str, default: object = None) -> Any:
        """A parameter as a Python value; `default` if it is absent, None if it is computed."""
        if key not in operation.inputs:
            return default
        constant = self.constants.find(operation.inputs[key][0])
        return None if constant is None else self.constants.plain(key, constant)

    def shape(self, name: object) -> tuple[int, ...] | None:
        """The declared shape of a value; None if it is open, has zeros, or is not of floats."""
        type_ = self.types.get(name) if isinstance(name, str) else None
        if type_ is None or type_.dtype not in FLOATS or None in type_.shape or 0 in type_.shape:
            return None
        return type_.sizes


@dataclass(slots=True)
class Match:
    """The ops that fit a pattern.

    values: the values that it names, and the results of ops that it names. notes: what a `Via` of
    the pattern noted. operations: in program order, up to the one that makes `result`.
    """

    graph: Graph
    values: dict[str, str | Constant] = field(default_factory=dict)
    named: dict[str, Operation] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    result: str = ""

    def __getitem__(self, name: str) -> str:
        """The name in the program of a run-time value, by its name in the pattern."""
        value = self.values[name]
        if not isinstance(value, str):
            raise Unfit(f"{name} is a constant")
        return value

    def __contains__(self, name: str) -> bool:
        return name in self.values

    @property
    def last(self) -> Operation:
        return self.operations[-1]

    def get(self, operation: str, key: str, default: object = None) -> Any:
        """A parameter of an op by the op's name in the pattern; as `Graph.value`."""
        if operation not in self.named:
            return default
        return self.graph.value(self.named[operation], key, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """The declared shape of a value by its name; raises Unfit where `Graph.shape` is None."""
        shape = self.graph.shape(self.values[name])
        if shape is None:
            raise Unfit(f"the shape of {name} is open, or it holds no float numbers")
        return shape

    def made(self, operation: str) -> tuple[int, ...]:
        """The declared shape of a named op's first result; raises Unfit as `shape` does."""
        shape = self.graph.shape(self.named[operation].outputs[0][0])
        if shape is None:
            raise Unfit(f"the shape that {operation} makes is open, or not of floats")
        return shape

    def known(self, name: str) -> Known:
        """A constant by its name in the pattern."""
        return self.graph.constants.known(self.values[name])

    def constant(self, name: str) -> torch.Tensor:
        """A constant that the pattern names, as a tensor."""
        return self.graph.constants.tensor(self.known(name))

    def number(self, name: str) -> float:
        """The only number in a constant."""
        known = self.known(name)
        if known.type.dtype == "string" or prod(known.type.sizes) != 1:
            raise Unfit(f"{name} is more than one number")
        return float(self.graph.constants.tensor(known))


def replace(
    match: Match,
    values: dict | None = None,
    named: dict | None = None,
    notes: dict | None = None,
    operations: tuple | None = None,
) -> Match:
    """A match with other fields, in a quarter of the time of `dataclasses.replace`."""
    return Match(
        match.graph,
        match.values if values is None else values,
        match.named if named is None else named,
        match.notes if notes is None else notes,
        match.operations if operations is None else operations,
        match.result,
    )


def split_sizes(match: Match, name: str) -> list[int] | None:
    """The sizes of the two parts of a split; None if parameters and declared shapes disagree."""
    operation, graph = match.named[name], match.graph
    axis = graph.value(operation, "axis")
    declared = [type_.shape[axis] for _, type_ in operation.outputs] if axis is not None else []
    halves = declared if len({*declared}) == 1 else None
    said = graph.value(operation, "split_sizes", halves)
    count = graph.value(operation, "num_splits", 2)
    fits = said == declared and len(declared) == 2 == count
    whole = all(isinstance(number, int) for number in [*(said or []), count])
    return declared if fits and whole else None


def is_halved(match: Match, name: str, shape: tuple[int, ...], axis: int) -> bool:
    """Whether an op is a `split` of a value of this shape into halves along `axis`."""
    axis %= len(shape)
    along = match.get(name, "axis") in (axis, axis - len(shape))
    return along and split_sizes(match, name) == [shape[axis] // 2] * 2


def is_stretch(
    match: Match, name: str, shape: tuple[int, ...], axis: int, begin: int, size: int
) -> bool:
    """Whether an op is a `slice_by_index` that equals torch's `narrow(axis, begin, size)`."""
    operation, graph = match.named[name], match.graph
    given = {key: graph.value(operation, key) for key in operation.inputs if key != "x"}
    if None in given.values():
        return False
    whole = torch.empty(shape, device="meta")
    part, wanted = slice_of(whole, **given), whole.narrow(axis, begin, size)
    places = [(t.shape, t.stride(), t.storage_offset()) for t in (part, wanted)]
    return places[0] == places[1]
