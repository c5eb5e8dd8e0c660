"""What a program writes goes where it says and nowhere else: states, outputs, constants, inputs."""

from _package import const, op, refused, run, typed, write
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


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("last", ["s", "t"])
def test_an_update_in_place_is_written_once_more(tmp_path, last, optimize):
    """What random programs found: to another state, or to its own, which was replaced since."""
    at = {"begin": const([2]), "end": const([4])}
    operations = [
        op("read_state", {"r": X}, input="s"),
        op("slice_update", {"u": X}, x="r", update=const([7.0, 8.0]), **at),
        op("write_state", {}, input="s", data="u"),
        op("write_state", {}, input="s", data="x"),
        op("write_state", {}, input=last, data="u"),
        op("read_state", {"y": X}, input=last),
    ]
    path = write(tmp_path / "p", operations, inputs={"x": X, "s": STATE, "t": STATE})
    found = run(path, {"x": np.ones(SIZE, np.float32)}, optimize)
    np.testing.assert_array_equal(found["y"], [0, 0, 7, 8])


@pytest.mark.parametrize("optimize", [True, False])
def test_a_constant_that_becomes_a_state_is_not_written_with_it(tmp_path, optimize):
    """What random programs found, see `_inline.py`: a view of it goes out, call after call."""
    at = {"begin": const([2]), "end": const([4])}
    operations = [
        op("identity", {"v": X}, x=const([7.0] * SIZE)),
        op("write_state", {}, input="s", data="v"),
        op("read_state", {"r": X}, input="s"),
        op("slice_by_index", {"p": typed("fp32", 2)}, x="x", **at),
        op("slice_update", {"u": X}, x="r", update="p", **at),
        op("write_state", {}, input="s", data="u"),
    ]
    path = write(tmp_path / "p", operations, ["v"], {"x": X, "s": STATE})
    program = MLProgram(path, optimize=optimize)
    state = program.make_state()
    for turn in range(3):
        found = program.predict({"x": np.full(SIZE, turn)}, state)["v"]
        assert found.tolist() == [7] * SIZE
        assert state.read_state("s").tolist() == [7, 7, turn, turn]
        found.fill(-1)  # the caller's own
