"""Claims state-count and state-writes: how many states a program may have, and writing them.

More than two fail (CoreML-LLM), a pair a layer works (videlalvaro); a cache that the program writes
is refused (mobius #77), or it is not (ANEMLL and others). Whether a state then holds what was
written (claim state-slice) no graph here shows, for each runs once: `ane-book residency` tests it.

Question: How many states may a program have, and may it write them?
"""

from _settle import Case, all_found, conv, graph, main, mb
import numpy as np

COUNTS = (1, 2, 3, 4)
SHAPE = (1, 64, 32, 32)


def rows(path, count: int, write: bool):
    """Convolutions that add what is in each state; the states get the newest row."""

    def step(x, *states):
        for state in states:
            held = mb.read_state(input=state)
            x = mb.relu(x=mb.add(x=conv(conv(x, 64, (3, 3)), 64, (3, 3)), y=held))
            if write:
                row = mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, 64, 1, 32])
                begin, end = np.array([0, 0, 5, 0], np.int32), np.array([1, 64, 6, 32], np.int32)
                new = mb.slice_update(x=held, update=row, begin=begin, end=end)
                mb.coreml_update_state(state=state, value=new)
        return mb.identity(x=x, name="y")

    builds = {
        1: lambda x, a: step(x, a),
        2: lambda x, a, b: step(x, a, b),
        3: lambda x, a, b, c: step(x, a, b, c),
        4: lambda x, a, b, c, d: step(x, a, b, c, d),
    }
    graph(path, [SHAPE], builds[count], states=[SHAPE] * count)


def name(count: int, write: bool) -> str:
    return f"{count} state{'s' * (count > 1)}, {'written' if write else 'read'}"


def decide(results):
    return all_found(results)


CASES = [
    Case(name(count, write), lambda path, c=count, w=write: rows(path, c, w))
    for count in COUNTS
    for write in (False, True)
]

if __name__ == "__main__":
    main("states", "state-count, state-writes", CASES, decide)
