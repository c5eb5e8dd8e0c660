"""Patterns of ops, as data, and the search for them in a program.

A pattern is an expression: an op whose inputs are expressions, down to values that get a name.

    op("mul", x=op("silu", x="gate"), y="x")        # silu(gate) * x, also written the other way

It is matched from its last op backwards. A name stands for one value, so if it occurs twice the
same value has to occur twice. A match may run as one kernel only if no op outside of it reads a
value that is made inside, and if nothing that it reads is overwritten before its last op.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mlprogram.analysis.aliases import memory_of, uses
from mlprogram.kernels.graph import Graph, Match, Unfit, replace
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant

COMMUTATIVE = frozenset(["add", "mul", "maximum", "minimum"])
WRITES = frozenset(["write_state", "slice_update"])


# --- patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpPattern:
    """An op of one of these types with these inputs; others may be anything.

    name: its name in a match. output: the index of its result that the pattern is about.
    """

    types: tuple[str, ...]
    inputs: Mapping[str, object]
    name: str = ""
    output: int = 0


@dataclass(frozen=True)
class Either:
    """Any of several patterns, which are tried in order."""

    patterns: tuple


@dataclass(frozen=True)
class Named:
    """A name for the value that a pattern makes."""

    name: str
    pattern: object


@dataclass(frozen=True)
class Const:
    """A constant."""

    name: str


@dataclass(frozen=True)
class Via:
    """A value, or one that it is computed from by ops that may be skipped.

    paths: from a graph and a value's name, yields (the earlier value, the ops between, a note); the
    match has the note under the name.
    """

    name: str
    paths: Callable


@dataclass(frozen=True)
class Axis:
    """The number of one axis of the op's result, counted from either end."""

    axis: int


def op(types: str, name: str = "", output: int = 0, /, **inputs: object) -> OpPattern:
    """An op, of one of the types that are separated by spaces.

    An input is a pattern; a name, for any value; a list of these; or the number, bool, None
    or `Axis` that it has to be, where None and False also fit an absent input.
    """
    return OpPattern(tuple(types.split()), inputs, name, output)


def either(*patterns: object) -> Either:
    return Either(patterns)


# --- matching -------------------------------------------------------------------------------------


def find(graph: Graph, pattern: OpPattern, last: Operation) -> Iterator[Match]:
    """Yield every match of a pattern that ends in this op and may run as one kernel.

    A caller stops at the match that it takes. After the last match, `Unfit` is raised for the
    attempt that got furthest, with the ops up to where it failed as `matched`.
    """
    search = _Search(graph)
    made = last.outputs[pattern.output][0] if pattern.output < len(last.outputs) else ""
    for match in search.op(pattern, last, Match(graph, result=made)):
        ordered = sorted(match.operations, key=lambda o: graph.position.get(id(o), 0))
        match = replace(match, operations=tuple(ordered))
        if reason := _outside(match):
            search.note(match, reason)
        else:
            yield match
    raise Unfit(search.reason, search.furthest)


def _outside(match: Match) -> str | None:
    """Why a group may not run as one: another op reads its values, or writes what it reads."""
    graph, inside = match.graph, {id(o) for o in match.operations}
    if len(inside) == 1:
        return None
    end = graph.position[id(match.last)]
    for operation in match.operations:
        for name, _ in operation.outputs:
            if name == match.result:
                continue
            if not inside.issuperset(graph.users.get(name, ())):
                return f"{name!r} is read elsewhere too"
    for operation in match.operations[:-1]:
        read = {memory_of(name, graph.origin) for name in uses(operation)}
        for between in graph.operations[graph.position[id(operation)] : end]:
            if id(between) not in inside and _written(graph, between) & read:
                return f"{between.type} {between.name!r} comes between, and writes what it reads"
    return None


def _written(graph: Graph, operation: Operation) -> set[str]:
    """The memory that an op may write; a nested block may write any state."""
    if operation.blocks:
        return set(graph.origin.values())
    if operation.type not in WRITES:
        return set()
    key = "input" if operation.type == "write_state" else "x"
    return {memory_of(operation.inputs[key][0], graph.origin)}


class _Search:
    """One search for a pattern, which remembers how far it got."""

    def __init__(self, graph: Graph):
        self.graph, self.reason = graph, ""
        self.furthest: tuple[Operation, ...] = ()

    def note(self, match: Match, reason: str) -> None:
        if len(match.operations) >= len(self.furthest):
            self.furthest, self.reason = match.operations, reason

    def op(self, pattern: OpPattern, operation: Operation, match: Match) -> Iterator[Match]:
        if operation.type not in pattern.types:
            self.note(match, f"{operation.type} {operation.name!r}, not {pattern.types[0]}")
            return
        known = match.named.get(pattern.name)
        if known is not None:  # already matched, through another input
            if known is operation:
                yield match
            return
        match = replace(
            match,
            operations=(*match.operations, operation),
            named=match.named | ({pattern.name: operation} if pattern.name else {}),
        )
        orders = [operation.inputs]
        if operation.type in COMMUTATIVE and {"x", "y"} <= operation.inputs.keys():
            orders.append(operation.inputs | dict(x=orders[0]["y"], y=orders[0]["x"]))
        for inputs in orders:
            yield from self.inputs([*pattern.inputs.items()], operation, inputs, match)

    def inputs(
        self, wanted: list, operation: Operation, inputs: Mapping, match: Match
    ) -> Iterator[Match]:
        if not wanted:
            yield match
            return
        (key, pattern), *rest = wanted
        for found in self.input(pattern, key, operation, inputs.get(key), match):
            yield from self.inputs(rest, operation, inputs, found)

    def input(
        self, pattern: object, key: str, operation: Operation, items: list | None, match: Match
    ) -> Iterator[Match]:
        if isinstance(pattern, Axis) or pattern is None or isinstance(pattern, bool | int | float):
            if self.equals(pattern, key, operation, items):
                yield match
            else:
                self.note(match, f"{key} of {operation.type} {operation.name!r} is another")
        elif items is None:
            self.note(match, f"{operation.type} {operation.name!r} has no {key}")
        elif isinstance(pattern, list):
            if len(pattern) == len(items):
                yield from self.items([*zip(pattern, items, strict=True)], match)
            else:
                self.note(match, f"{operation.type} {operation.name!r} takes {len(items)} values")
        elif len(items) == 1:
            yield from self.item(pattern, items[0], match)

    def items(self, wanted: list, match: Match) -> Iterator[Match]:
        if not wanted:
            yield match
            return
        (pattern, item), *rest = wanted
        for found in self.item(pattern, item, match):
            yield from self.items(rest, found)

    def item(self, pattern: object, item: str | Constant, match: Match) -> Iterator[Match]:
        if isinstance(pattern, Either):
            for one in pattern.patterns:
                yield from self.item(one, item, match)
        elif isinstance(pattern, Named):
            for found in self.item(pattern.pattern, item, match):
                yield replace(found, values=found.values | {pattern.name: item})
        elif isinstance(pattern, OpPattern):
            yield from self.made(pattern, item, match)
        elif isinstance(pattern, Via):
            for base, between, note in pattern.paths(self.graph, item):
                notes = match.notes | {pattern.name: note}
                more = replace(match, notes=notes, operations=(*match.operations, *between))
                yield from self.value(pattern.name, base, more)
            yield from self.value(pattern.name, item, match)
        elif isinstance(pattern, Const | str):
            yield from self.value(pattern, item, match)

    def made(self, pattern: OpPattern, item: str | Constant, match: Match) -> Iterator[Match]:
        """Match an op by the value that it makes."""
        maker, index = self.graph.maker.get(item if isinstance(item, str) else "", (None, 0))
        if maker is None or maker.type == "const":
            self.note(match, f"an input or a constant where {pattern.types[0]} would make it")
        elif index != pattern.output:
            self.note(match, f"another result of {maker.type} {maker.name!r}")
        else:
            named = {pattern.name: item} if pattern.name else {}
            for found in self.op(pattern, maker, match):
                yield replace(found, values=found.values | named)

    def value(self, pattern: Const | str, item: str | Constant, match: Match) -> Iterator[Match]:
        """Match a named value: a constant if the pattern says so, else a run-time value."""
        name = pattern.name if isinstance(pattern, Const) else pattern
        constant = self.graph.constants.find(item)
        if (constant is not None) != isinstance(pattern, Const):
            what = "computed" if constant is None else "a constant"
            self.note(match, f"{name} is {what}")
        elif match.values.get(name, item) is not item and match.values.get(name) != item:
            self.note(match, f"{name} is another value here")
        else:
            yield replace(match, values=match.values | {name: item})

    def equals(self, pattern: object, key: str, operation: Operation, items: list | None) -> bool:
        """Whether a parameter has the pattern's value; an absent one equals None and False."""
        if items is None:
            return pattern is None or pattern is False
        value = self.graph.value(operation, key)
        scalar = key == "axis" or isinstance(pattern, bool)  # which a list of one is not
        if isinstance(value, list) and len(value) == 1 and not scalar:
            value = value[0]
        if isinstance(pattern, Axis):
            shape = operation.outputs[0][1].shape
            if not isinstance(value, int) or shape in ((), (None,)):  # of which nothing is known
                return value == pattern.axis
            return value % len(shape) == pattern.axis % len(shape)
        return value is not None and value == pattern
