"""Who may share memory with whom: what makes writing a state in place safe.

Torch's views are free, so `reshape` of a state is the state. That is wanted while reading and
dangerous while writing: a value read before a write must not change with it, and what outlives the
call (states, outputs) may share memory neither with an input or a constant nor with each other.
This module answers both questions, conservatively.
"""

from collections.abc import Iterator

from ane_book.mil.reader import Block, Constant, Function, Operation

__all__ = ["in_place_writes", "memory_of", "origins", "uses"]

#: Ops whose result may share memory with an input; every other op makes a fresh tensor.
VIEWS = frozenset(
    [
        "reshape",
        "transpose",
        "split",
        "slice_by_index",
        "slice_by_size",
        "squeeze",
        "expand_dims",
        "identity",
        "cast",
        "flatten2d",
        "reshape_like",
        "tile",
        "reverse",
        "cond",
        "while_loop",
        "list_read",
    ]
)


def uses(operation: Operation) -> Iterator[str]:
    """Names of the values that an op reads, those inside its nested blocks included."""
    for items in operation.inputs.values():
        yield from (item for item in items if not isinstance(item, Constant))
    for block in operation.blocks:
        yield from block.outputs
        for inner in block.operations:
            yield from uses(inner)


def origins(function: Function, constants: dict) -> dict[str, frozenset[str]]:
    """For each value, whose memory it may share: which states', inputs', constants', and which
    values' that ops made, its own included.
    """
    found = {name: frozenset([name]) for name in (*function.inputs, *function.states, *constants)}

    def visit(block: Block, inherited: frozenset[str]) -> None:
        for name, _ in block.inputs:
            found[name] = inherited
        for operation in block.operations:
            # what nested blocks make is not known yet and stands for itself: a loop may carry it
            shared = [found.get(name, frozenset([name])) for name in uses(operation)]
            shared = frozenset().union(*shared)
            for nested in operation.blocks:
                visit(nested, shared)
            view = operation.type in VIEWS or operation.type == "read_state"
            for name, _ in operation.outputs:
                found[name] = shared if view else frozenset([name])

    visit(function.block, frozenset())
    return found


def memory_of(item: str | Constant, origin: dict[str, frozenset[str]]) -> frozenset[str]:
    """Whose memory an op's input may share; a constant that stands in the op shares none."""
    return frozenset() if isinstance(item, Constant) else origin[item]


def _touches(operation: Operation, *types: str) -> Iterator[Operation]:
    """The ops of the given types (`read_state`, `write_state`) that an op is or holds in blocks."""
    if operation.type in types:
        yield operation
    for block in operation.blocks:
        for inner in block.operations:
            yield from _touches(inner, *types)


def in_place_writes(function: Function, origin: dict[str, frozenset[str]]) -> dict[str, str]:
    """The `slice_update` ops that may write their state in place: result's name -> state.

    One qualifies when it updates what the state still holds and nobody can see the difference.
    """
    found: dict[str, str] = {}
    content: dict[str, str] = {}  # values of `read_state` -> the state that holds them still
    memory = {name: {name} for name in function.states}  # whose memory each state may be by now
    for position, operation in enumerate(function.block.operations):
        for write in _touches(operation, "write_state"):
            (state,), (data,) = write.inputs["input"], write.inputs["data"]
            memory[state] |= memory_of(data, origin)
            content = {value: other for value, other in content.items() if other != state}
        if operation.type == "read_state":
            content[operation.outputs[0][0]] = operation.inputs["input"][0]
        elif operation.type == "slice_update":
            x = operation.inputs["x"][0]
            state = None if isinstance(x, Constant) else content.get(x)
            if state and _unseen(function.block, position, state, memory[state], origin):
                found[operation.outputs[0][0]] = state
    return found


def _unseen(block: Block, position: int, state: str, memory: set[str], origin: dict) -> bool:
    """Whether no one sees the `slice_update` at `position` write into the state's `memory`.

    Its result goes into the state, before anything else touches that, and nowhere else; no value
    that shares the memory as it was is an output, the update, or read afterwards.
    """
    operation, later = block.operations[position], block.operations[position + 1 :]
    result, update = operation.outputs[0][0], operation.inputs["update"][0]
    before = [name for o in block.operations[:position] for name, _ in o.outputs]
    old = {name for name in before if memory & origin[name]}
    if result in block.outputs or old & {*block.outputs} or memory & memory_of(update, origin):
        return False
    takers = [o for o in later if result in uses(o)]
    touching = (
        o
        for o in later
        for inner in _touches(o, "read_state", "write_state")
        if inner.inputs["input"] == [state]
    )
    taken = takers == [next(touching, None)] and takers[0].type == "write_state"
    return taken and not any(old.intersection(uses(o)) for o in later)
