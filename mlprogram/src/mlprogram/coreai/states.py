"""Updates of a state that Core AI's runtime would write over it.

The runtime (coreai-core 1.0.0b3, on Linux) writes `slice_update` in the place of what it updates
where that is a state: rightly so for the update that the state gets, and wrongly for any other,
which the state then holds too. So a second update of the same memory is refused, by its name.
"""

from collections import defaultdict

from mlprogram.package.function import Function

#: What has the memory of its input.
VIEWS = frozenset(["cast", "expand_dims", "identity", "reshape", "squeeze"])


def updates_apart(function: Function) -> set[str]:
    """Names of the results of updates of a state's memory that this state does not get, or that
    another update has begun from already."""
    source, written = dict[str, tuple[str, str]](), list[tuple[str, str]]()
    memory: dict[str, set[str]] = defaultdict(set)  # name -> states whose memory it is
    for operation in function.block.operations:
        if operation.type == "write_state":
            written.append((operation.inputs["data"][0], operation.inputs["input"][0]))
        elif operation.type == "read_state":
            name, state = operation.outputs[0][0], operation.inputs["input"][0]
            memory[name].add(state)
            if now := [data for data, of in written if of == state]:
                source[name] = ("read_state", now[-1])
        elif operation.type in VIEWS or operation.type == "slice_update":
            source[operation.outputs[0][0]] = (operation.type, operation.inputs["x"][0])
    kept: dict[str, set[str]] = defaultdict(set)  # name -> states that get what it leads to
    for name, state in written:
        memory[name].add(state)
        while name in source and state not in kept[name]:
            kept[name].add(state)
            name = source[name][1]
    apart, begun = set(), set()
    for name, (kind, x) in source.items():
        memory[name] |= memory[x]
        if kind == "slice_update" and memory[x]:
            if x in begun or memory[x] - kept[name]:
                apart.add(name)
            begun.add(x)
    return apart
