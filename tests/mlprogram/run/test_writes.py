"""What a program writes goes where it says and nowhere else: states, outputs, constants, inputs."""

from pathlib import Path
import tempfile

from _package import const, op, refused, run, typed, write
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlprogram import MLProgram
import numpy as np
import pytest

SIZE = 4
X = typed("fp32", SIZE)
STATE = typed("fp32", SIZE, kind="state")


def update(rows: int, in_place: bool) -> tuple[list, dict]:
    """Rows of a state (8, 4) are replaced from a position on that comes with the call."""
    state, row = typed("fp32", 8, 4), typed("fp32", rows, 4)
    inputs = {"x": row, "begin": typed("int32", 2), "end": typed("int32", 2)}
    operations = [
        op("read_state", {"r": state}, input="s"),
        op("slice_update", {"u": state}, x="r", update="x", begin="begin", end="end"),
        op("write_state", {}, input="s", data="u"),
        op("read_state" if in_place else "identity", {"y": state},
           **{"input" if in_place else "x": "s" if in_place else "u"}),
    ]  # fmt: skip
    return operations, inputs | {"s": typed("fp32", 8, 4, kind="state")}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("rows, begin", [(1, 8), (2, 8), (2, 7), (1, 9), (1, -9), (3, -2)])
def test_rows_beyond_a_states_end_are_refused(tmp_path, rows, begin, in_place):
    """As by MIL: an update has the shape of the slice, which is cut at the end of the tensor."""
    operations, inputs = update(rows, in_place)
    path = write(tmp_path / "p", operations, inputs=inputs)
    end = begin + rows if begin >= 0 else min(begin + rows, 0) or 8
    at = {"begin": np.int32([begin, 0]), "end": np.int32([end, 4])}
    says = r"op 'slice_update' \('u', operation 1 of 4\).*an update of shape \(\d, 4\).*of shape"
    refused(path, says, inputs={"x": np.ones((rows, 4), np.float32), **at})


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("rows, begin, end", [(1, 7, 8), (2, 6, 8), (2, -2, 8), (2, -8, 2)])
def test_rows_up_to_a_states_end_are_written(tmp_path, rows, begin, end, in_place):
    operations, inputs = update(rows, in_place)
    path = write(tmp_path / "p", operations, inputs=inputs)
    given = {"x": np.ones((rows, 4)), "begin": np.int32([begin, 0]), "end": np.int32([end, 4])}
    expected = np.zeros((8, 4))
    expected[begin:end] = 1
    for optimize in (True, False):
        np.testing.assert_array_equal(run(path, given, optimize)["y"], expected)


# --- who shares memory with whom ------------------------------------------------------------------

#: Ops that may give the memory of x, with what they take besides.
VIEWS = {
    "identity": {},
    "reshape": {"shape": const([SIZE])},
    "cast": {"dtype": const("fp32")},
    "slice_by_index": {"begin": const([0]), "end": const([SIZE])},
}
CONSTANTS = {"inline": [7.0] * SIZE, "k": [5.0] * SIZE}
PLACES = st.integers(0, 20)
STEPS = st.tuples(st.sampled_from([*VIEWS, "read", "write", "update", "add"]), PLACES, PLACES)


def chosen(steps):
    """Each step as (kind, result, state, operands), which are among the values before it."""
    names = [*CONSTANTS, "x"]
    for i, (kind, one, other) in enumerate(steps):
        state = "st"[other % 2]
        operands = [names[place % len(names)] for place in (one, other)]
        yield kind, f"v{i}", state, operands[: {"read": 0, "add": 2, "update": 2}.get(kind, 1)]
        if kind != "write":
            names.append(f"v{i}")


def operations(steps):
    """As ops; an update replaces the last two elements of a value by those of a slice."""
    yield op("const", {"k": X}, val=const(CONSTANTS["k"]))
    for kind, result, state, operands in chosen(steps):
        items = [const(CONSTANTS[name]) if name == "inline" else name for name in operands]
        if kind == "read":
            yield op("read_state", {result: X}, input=state)
        elif kind == "write":
            yield op("write_state", {}, input=state, data=items[0])
        elif kind == "add":
            yield op("add", {result: X}, x=items[0], y=items[1])
        elif kind == "update":
            at = {"begin": const([2]), "end": const([4])}
            yield op("slice_by_index", {f"{result}p": typed("fp32", 2)}, x=items[1], **at)
            yield op("slice_update", {result: X}, x=items[0], update=f"{result}p", **at)
        else:
            yield op(kind, {result: X}, x=items[0], **VIEWS[kind])


def computed(steps, x, states):
    """As plain numbers, by value; the states are replaced."""
    values = {name: np.float32(value) for name, value in CONSTANTS.items()} | {"x": x}
    for kind, result, state, operands in chosen(steps):
        given = [values[name] for name in operands]
        if kind == "write":
            states[state] = given[0]
        elif kind == "read":
            values[result] = states[state]
        elif kind == "update":
            values[result] = np.concatenate([given[0][:2], given[1][2:]])
        else:
            values[result] = sum(given)
    return values


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=10), st.sets(PLACES, min_size=1, max_size=4))
@example(
    [("identity", 0, 0), ("write", 3, 0), ("read", 0, 0), ("update", 4, 2), ("write", 5, 0)], {0}
)
def test_a_result_is_nobody_elses_memory(steps, places):
    """Outputs that a caller fills, and states, change neither each other nor the next call."""
    names = [result for kind, result, *_ in chosen(steps) if kind != "write"] or ["x"]
    outputs = [*dict.fromkeys(names[place % len(names)] for place in sorted(places))]
    inputs = {"x": X, "s": STATE, "t": STATE}
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "p", [*operations(steps)], outputs, inputs)
        programs = [MLProgram(path, optimize=optimize) for optimize in (True, False)]
    for program in programs:
        kept, state = {name: np.zeros(SIZE, np.float32) for name in "st"}, program.make_state()
        for turn in (1, 2, 3):
            x = np.arange(SIZE, dtype=np.float32) * turn
            expected = computed(steps, x, kept)
            found = program.predict({"x": x}, state)
            for name in outputs:
                np.testing.assert_array_equal(found[name], expected[name])
                found[name][...] = -1
            for name in "st":
                np.testing.assert_array_equal(state.read_state(name), kept[name])
            np.testing.assert_array_equal(x, np.arange(SIZE) * turn)
