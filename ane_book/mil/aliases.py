"""Who may share memory with whom: what makes writing a state in place safe.

Torch's views are free, so `reshape` of a state is the state. That is wanted while reading and
dangerous
while writing: a value read before a write must not change with it, and no result may keep pointing
into a state, an input or a constant after the call. This module answers both questions,
conservatively.
"""

from collections.abc import Iterator

from ane_book.mil.reader import Block, Constant, Function, Operation

__all__ = ["in_place_writes", "origins", "uses"]

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
        "make_list",
        "list_write",
        "list_read",
        "list_gather",
        "list_scatter",
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
    """For each value, the states, inputs and constants whose memory it may share."""
    found = {name: frozenset([name]) for name in (*function.inputs, *function.states, *constants)}

    def visit(block: Block, inherited: frozenset[str]) -> None:
        for name, _ in block.inputs:
            found[name] = inherited
        for operation in block.operations:
            shared = frozenset().union(*(found.get(name, frozenset()) for name in uses(operation)))
            for nested in operation.blocks:
                visit(nested, shared)
            view = operation.type in VIEWS or operation.type == "read_state"
            for name, _ in operation.outputs:
                found[name] = shared if view else frozenset()

    visit(function.block, frozenset())
    return found


def in_place_writes(function: Function, origin: dict[str, frozenset[str]]) -> dict[str, str]:
    """The `slice_update` ops that may write their state in place: result's name -> state.

    One qualifies when it updates what `read_state` gave, its result goes into the same state and
    nowhere else, and no value that shares the old state's memory is read after it.
    """
    operations = function.block.operations
    readers = {o.outputs[0][0]: o.inputs["input"][0] for o in operations if o.type == "read_state"}
    found: dict[str, str] = {}
    for position, operation in enumerate(operations):
        if operation.type != "slice_update":
            continue
        state, result = readers.get(operation.inputs["x"][0]), operation.outputs[0][0]
        if state is None or result in function.block.outputs:
            continue
        later = operations[position + 1 :]
        takers = [o for o in later if result in uses(o)]
        old = {
            name
            for before in operations[:position]
            for name, _ in before.outputs
            if state in origin[name]
        }
        read_later = any(old.intersection(uses(o)) for o in later) or state in origin.get(
            operation.inputs["update"][0], ()
        )
        written = [o for o in takers if o.type == "write_state" and o.inputs["input"] == [state]]
        if (
            len(takers) == 1
            and written
            and not read_later
            and not old & set(function.block.outputs)
        ):
            found[result] = state
    return found
