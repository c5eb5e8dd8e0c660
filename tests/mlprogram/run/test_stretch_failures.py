"""A step of a stretch that cannot run leaves all as it would one by one: see `run/stretches.py`."""

from pathlib import Path

from _package import const, op, typed, write
from mlprogram import MLProgram
from mlprogram.errors import InvalidPackage
from mlprogram.kernels import native
import numpy as np
import pytest
from random_programs import outcome
from test_stretches import check

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

STATE, LAYER, ROW = typed("fp32", 2, 4, 6), typed("fp32", 1, 4, 6), typed("fp32", 1, 1, 6)
INPUTS = {"x": ROW, "k": typed("int32", 1), "s": typed("fp32", 2, 4, 6, kind="state")}
FIRST = {"begin": const([0, 0, 0]), "end": const([1, 1, 6])}  # row 0 of layer 0
SECOND = {"begin": const([1, 0, 0]), "end": const([2, 4, 6])}  # layer 1


def picked(name: str, x: str, checked: bool):
    """A row, by the input `k`; one that is not there is refused if checked, or left to Python."""
    check = {"validate_indices": const(np.array(checked))}
    return op("gather", {name: ROW}, x=x, indices="k", axis=const(1), **check)


def compare(path: Path, k: int, is_refused: bool) -> None:
    """Output, error and state are those of steps that Python calls one by one."""
    given = {"x": np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6), "k": np.int32([k])}
    check(program := MLProgram(path), 1, lambda _: given)
    assert isinstance(outcome(program, given, program.make_state()), str) == is_refused


@pytest.mark.parametrize("k", [0, 3, 4])
def test_a_state_is_written_when_its_turn_comes(tmp_path, k):
    """A layer is taken out, changed, read and put back; for a row that there is none of, not."""
    ops = [
        op("read_state", {"r": STATE}, input="s"),
        op("slice_by_index", {"a": LAYER}, x="r", **SECOND),
        op("slice_update", {"b": LAYER}, x="a", update="x", **FIRST),
        picked("c", "b", True),
        op("slice_update", {"n": STATE}, x="r", update="b", **SECOND),
        op("write_state", {}, input="s", data="n"),
        op("add", {"y": ROW}, x="c", y="x"),
    ]
    path = write(tmp_path / "p.mlpackage", ops, ["y"], INPUTS)
    compare(path, k, k == 4)


@pytest.mark.parametrize("k", [0, 4])
def test_a_state_that_an_earlier_stretch_read_is_updated_after_a_failure(tmp_path, k):
    """The value that was read is not given to the stretch whose step fails."""
    ops = [
        op("read_state", {"r": STATE}, input="s"),
        op("add", {"a": ROW}, x="x", y="x"),
        op("mul", {"b": ROW}, x="a", y="x"),
        op("relu", {"c": ROW}, x="b"),  # which torch computes
        op("add", {"d": ROW}, x="c", y="x"),
        picked("y", "c", False),
        op("slice_update", {"n": STATE}, x="r", update="d", **FIRST),
        op("write_state", {}, input="s", data="n"),
    ]
    path = write(tmp_path / "p.mlpackage", ops, ["y"], INPUTS)
    compare(path, k, False)


def test_the_op_that_fails_is_named_where_another_does_the_same(tmp_path):
    """Two updates of a state take the same values, and the second one's stretch failed before."""
    at = {"update": "x", "begin": "b", "end": "e"}
    ops = [
        op("read_state", {"r": STATE}, input="s"),
        op("add", {"a": ROW}, x="x", y="x"),
        op("slice_update", {"n": STATE}, x="r", **at),
        op("write_state", {}, input="s", data="n"),
        op("relu", {"c": ROW}, x="a"),  # which torch computes
        op("read_state", {"q": STATE}, input="s"),
        picked("y", "c", False),
        op("slice_update", {"m": STATE}, x="q", **at),
        op("write_state", {}, input="s", data="m"),
    ]
    inputs = INPUTS | {"b": typed("int32", 3), "e": typed("int32", 3)}
    program = MLProgram(write(tmp_path / "p.mlpackage", ops, ["y"], inputs))

    def given(row: int, k: int) -> dict[str, np.ndarray]:
        place = {"b": np.int32([0, row, 0]), "e": np.int32([1, row + 1, 6])}
        return place | {"x": np.ones((1, 1, 6), np.float32), "k": np.int32([k])}

    state = program.make_state()
    program.predict(given(0, 4), state)
    with pytest.raises(InvalidPackage, match=r"op 'slice_update' \('n', operation 2 of 9\)"):
        program.predict(given(4, 0), state)
