"""Who may share memory with whom: what makes writing a state in place safe.

Torch's views are free, so `reshape` of a state is the state. That is wanted while reading and
dangerous while writing: a value read before a write must not change with it, and what outlives the
call (states, outputs) may share memory neither with an input or a constant nor with each other.
This module answers both questions, conservatively: sharing is taken to be mutual and to pass on, so
that the values of a function fall into classes, and one class has nothing of another's memory. A
class has the name of one of its values.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping

from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import Constant

__all__ = ["INLINE", "in_place_writes", "memory_of", "origins", "uses"]

#: Ops whose results may share memory with one of their inputs, and which; every other op but `cond`
#: and `while_loop` makes a fresh tensor.
VIEWS = {
    "reshape": "x", "transpose": "x", "split": "x", "slice_by_index": "x", "slice_by_size": "x",
    "squeeze": "x", "expand_dims": "x", "identity": "x", "cast": "x", "flatten2d": "x",
    "reshape_like": "x", "tile": "x", "reverse": "x", "list_read": "ls", "read_state": "input",
}  # fmt: skip

INLINE = ""  # the class of constants that stand in an op; no value has this name


def uses(operation: Operation) -> Iterator[str]:
    """Names of the values that an op reads, those inside its nested blocks included."""
    for items in operation.inputs.values():
        yield from (item for item in items if not isinstance(item, Constant))
    for block in operation.blocks:
        yield from block.outputs
        for inner in block.operations:
            yield from uses(inner)


def origins(function: Function) -> dict[str, str]:
    """The class of each value, state and input: what may share memory with it has the same one."""
    parents: dict[str, str] = {}  # a forest, whose roots are the classes

    def root(name: str) -> str:
        while (parent := parents.setdefault(name, name)) != name:
            parents[name] = parents[parent]  # halves the way for who comes next
            name = parent
        return name

    for name in (INLINE, *function.inputs, *function.states):
        root(name)
    for operation in function.operations():
        for name, _ in operation.outputs:
            root(name)
        for first, other in _shared(operation):
            parents[root(first)] = root(other)
    return {name: root(name) for name in parents}


def _shared(operation: Operation) -> Iterator[tuple[str, str]]:
    """Pairs of values that may be one memory through this op."""
    outputs = [name for name, _ in operation.outputs]
    blocks = operation.blocks
    if operation.type in VIEWS:
        source = _name(operation.inputs[VIEWS[operation.type]][0])
        yield from ((output, source) for output in outputs)
    elif operation.type == "cond":
        for block in blocks:
            yield from zip(outputs, block.outputs, strict=True)
    elif operation.type == "while_loop":
        carried = [[_name(item) for item in operation.inputs["loop_vars"]], blocks[1].outputs]
        carried += [[name for name, _ in block.inputs] for block in blocks]
        for names in carried:
            yield from zip(outputs, names, strict=True)


def _name(item: str | Constant) -> str:
    return INLINE if isinstance(item, Constant) else item


def memory_of(item: str | Constant, origin: Mapping[str, str]) -> str:
    """The class of an op's input."""
    return origin[_name(item)]


def _touches(operation: Operation, *types: str) -> Iterator[Operation]:
    """The ops of the given types (`read_state`, `write_state`) that an op is or holds in blocks."""
    if operation.type in types:
        yield operation
    for block in operation.blocks:
        for inner in block.operations:
            yield from _touches(inner, *types)


def in_place_writes(function: Function, origin: Mapping[str, str]) -> dict[str, str]:
    """The `slice_update` ops that may write their state in place: result's name -> state.

    One qualifies when it updates what the state still holds, or will hold by updates before, and
    nobody can see the difference.
    """
    found: dict[str, str] = {}
    content: dict[str, tuple[str, int]] = {}  # values of `read_state` -> state, writes before it
    writes = dict.fromkeys(function.states, 0)
    seen = _Seen(function.block, origin, function.states)
    for position, operation in enumerate(function.block.operations):
        for write in _touches(operation, "write_state"):
            (state,), (data,) = write.inputs["input"], write.inputs["data"]
            writes[state] += 1
            seen.write(state, memory_of(data, origin))
        if operation.type == "read_state":
            (state,) = operation.inputs["input"]
            content[operation.outputs[0][0]] = state, writes[state]
        elif operation.type == "slice_update":
            state, version = content.get(_name(operation.inputs["x"][0]), ("", -1))
            if version == writes.get(state) and seen.unseen(position, state):
                (name, _), *_ = operation.outputs
                found[name], content[name] = state, (state, version)
                seen.write(state, origin[name])
        seen.make(operation)
    return found


def _arrivals(block: Block) -> Iterator[tuple[str, tuple[str, int]]]:
    """Values that go into a state, as they are or by updates: value -> state, where it is written.

    The first of the ops that take a value there counts, which comes last.
    """
    arrives: dict[str, tuple[str, int]] = {}
    shown = {*block.outputs}
    for position in range(len(block.operations) - 1, -1, -1):
        operation = block.operations[position]
        results = [name for name, _ in operation.outputs]
        if operation.type == "write_state":
            name = _name(operation.inputs["data"][0])
            arrives[name] = operation.inputs["input"][0], position
        elif operation.type == "slice_update" and results and results[0] in arrives:
            name = _name(operation.inputs["x"][0])
            arrives[name] = arrives[results[0]]
        else:
            continue
        if name not in shown:
            yield name, arrives[name]


class _Seen:
    """Who reads what in a block, gone through op by op, and what shares memory with each state."""

    def __init__(self, block: Block, origin: Mapping[str, str], states: Mapping):
        self.operations, self.origin = block.operations, origin
        self.readers: dict[str, list[int]] = defaultdict(list)  # value -> positions; outputs last
        self.touching: dict[str, list[int]] = defaultdict(list)  # state -> positions
        for position, operation in enumerate(block.operations):
            for name in dict.fromkeys(uses(operation)):
                self.readers[name].append(position)
            for inner in _touches(operation, "read_state", "write_state"):
                self.touching[inner.inputs["input"][0]].append(position)
        for name in block.outputs:
            self.readers[name].append(len(block.operations))
        self.arrives = dict(_arrivals(block))
        self.holders: dict[str, set[str]] = defaultdict(set)  # class -> states it may be by now
        for state in states:
            self.holders[origin[state]].add(state)
        self.last: dict[str, int] = defaultdict(int)  # class -> last reader of what was made so far
        self.last_of = dict.fromkeys(states, 0)  # state -> the same, of all that it may be

    def make(self, operation: Operation) -> None:
        """The results of an op are there."""
        for name, _ in operation.outputs:
            memory, reader = self.origin[name], max(self.readers.get(name, (0,)))
            self.last[memory] = max(self.last[memory], reader)
            for state in self.holders.get(memory, ()):
                self.last_of[state] = max(self.last_of[state], reader)

    def write(self, state: str, memory: str) -> None:
        """A state may be this memory from here on."""
        self.holders[memory].add(state)
        self.last_of[state] = max(self.last_of[state], self.last.get(memory, 0))

    def unseen(self, position: int, state: str) -> bool:
        """Whether no one sees the `slice_update` at `position` write into the state's memory.

        Its result goes into the state, as it is or by further updates, before anything else touches
        that; no value that shares the memory as it was is an output, the update, or read
        afterwards.
        """
        operation, touching = self.operations[position], self.touching[state]
        following = touching[bisect(touching, position) :][:1]
        arrives = self.arrives.get(operation.outputs[0][0])
        taken = following != [] and arrives == (state, following[0])
        update = memory_of(operation.inputs["update"][0], self.origin)
        return taken and state not in self.holders[update] and self.last_of[state] <= position
