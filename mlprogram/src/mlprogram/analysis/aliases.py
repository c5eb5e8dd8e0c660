"""Alias analysis: which values may share memory, and which writes to a state can be done in place.

Torch's views are free, so `reshape` of a state is the state's own memory. That is fine for reading,
but a value that was read before a write must not change with it, and what outlives the call
(states, outputs) may share memory neither with an input or a constant nor with each other.

The analysis is conservative: sharing is treated as an equivalence relation, which divides the
values of a function into classes that share no memory with each other. A class is named after one
of its values.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping

from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import Constant

#: Ops whose results may share memory with one of their inputs -> that input. Every other op, except
#: for `cond` and `while_loop`, returns a new tensor.
VIEWS = {
    "reshape": "x", "transpose": "x", "split": "x", "slice_by_index": "x", "slice_by_size": "x",
    "squeeze": "x", "expand_dims": "x", "identity": "x", "cast": "x", "flatten2d": "x",
    "reshape_like": "x", "tile": "x", "reverse": "x", "list_read": "ls", "read_state": "input",
}  # fmt: skip

INLINE = ""  # the class of constants inside of an op; no value has this name


def uses(operation: Operation) -> list[str]:
    """Names of the values that an op reads, including those read in its nested blocks."""
    names = [
        item
        for items in operation.inputs.values()
        for item in items
        if not isinstance(item, Constant)
    ]
    for block in operation.blocks:
        names += block.outputs
        names += (name for inner in block.operations for name in uses(inner))
    return names


def origins(function: Function) -> dict[str, str]:
    """Map each value, state and input to its class: values of one class may share memory."""
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
    """Pairs of values that may share memory because of this op."""
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
    """The op itself and those in its nested blocks that are of the given types."""
    if operation.type in types:
        yield operation
    for block in operation.blocks:
        for inner in block.operations:
            yield from _touches(inner, *types)


def in_place_writes(function: Function, origin: Mapping[str, str]) -> dict[str, str]:
    """The `slice_update` ops that may write their state in place: result's name -> state.

    An op qualifies if it updates the current content of the state, or the result of an earlier
    update of it, and no other reader can see a difference.
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
    """Yield values that are written to a state, directly or through updates: value -> (state,
    position of the write).

    A value may be yielded more than once: the earliest op that takes it counts, and comes last.
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
    """The readers of each value in a block, and, op by op, what shares memory with each state."""

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
        """Record the results of an op."""
        for name, _ in operation.outputs:
            memory, reader = self.origin[name], max(self.readers.get(name, (0,)))
            self.last[memory] = max(self.last[memory], reader)
            for state in self.holders.get(memory, ()):
                self.last_of[state] = max(self.last_of[state], reader)

    def write(self, state: str, memory: str) -> None:
        """Record that a state may be this memory from here on."""
        self.holders[memory].add(state)
        self.last_of[state] = max(self.last_of[state], self.last.get(memory, 0))

    def unseen(self, position: int, state: str) -> bool:
        """Whether nothing can see the `slice_update` at `position` write into the state's memory.

        That is so if its result is written to the state, directly or through further updates,
        before anything else touches the state, and if no value that shares the old memory is an
        output, is the update itself, or is read afterwards.
        """
        operation, touching = self.operations[position], self.touching[state]
        following = touching[bisect(touching, position) :][:1]
        arrives = self.arrives.get(operation.outputs[0][0])
        taken = following != [] and arrives == (state, following[0])
        update = memory_of(operation.inputs["update"][0], self.origin)
        return taken and state not in self.holders[update] and self.last_of[state] <= position
