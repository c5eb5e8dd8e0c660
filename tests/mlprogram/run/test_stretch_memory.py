"""Where a stretch's values lie: programs in which a value was once read where it no longer was."""

from copy import deepcopy
import ctypes
import pickle

from _package import const, op, typed, write
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.run import record
from mlprogram.run.asked import NotNative
from mlprogram.run.calls import ConstantMemory
from mlprogram.run.slices import update_state
from mlprogram.run.states import States
from mlprogram.run.stretches import NativeStretch
import numpy as np
import pytest
from test_stretches import check
import torch

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

OPEN, ROWS = typed("fp32", None, 6), typed("fp32", 4, 8)
FOUR = typed("int32", 4)


@pytest.fixture
def same(tmp_path):
    """Whether a program gives the same in C as from Python, for each of some inputs, while others
    hold all small pieces of memory that were free."""

    def run(operations, outputs, inputs, calls, in_c=True):
        held = []

        def given(i: int) -> dict:
            held[:] = [torch.full((count,), 7.0) for count in range(1, 300) for _ in range(3)]
            return calls[i]

        program = MLProgram(write(tmp_path / "p", operations, outputs, inputs))
        assert check(program, len(calls), given) or not in_c

    return run


def sizes(first: int) -> list:
    """`v` = [rows of x, or `first` where that is 0]: how many rows, as whole numbers."""
    two, one, none = typed("int32", 2), typed("int32", 1), typed("int32")
    return [
        op("shape", {"shape": two}, x="x"),
        op("gather", {"n": none}, x="shape", indices=const(0), axis=const(0)),
        op("expand_dims", {"rows": one}, x="n", axes=const([0])),
        op("concat", {"v": two}, values=["rows", const([first])], axis=const(0),
           interleave=const(False)),
    ]  # fmt: skip


def of_rows(*counts: int) -> list[np.ndarray]:
    return [np.random.default_rng(n).normal(size=(n, 6)).astype(np.float32) for n in counts]


@pytest.mark.parametrize("columns", [1, 8, 16, 17])
@pytest.mark.parametrize("batch", [(), (1,), (2,)])
@pytest.mark.parametrize("constant", ["left", "right"])
def test_what_is_made_of_a_constant_lives_on(same, constant, batch, columns):
    """Operands of an einsum are turned, a constant one when the step is recorded: the copy was once
    gone before a call read it."""
    rng, letters = np.random.default_rng(1), "b" * len(batch)
    left, right, made = (*batch, 5, 2, 3), (*batch, 3, 2, columns), (*batch, 5, 2, columns)
    given, other = (right, left) if constant == "left" else (left, right)
    weight = rng.standard_normal(other).astype(np.float32)
    steps = [
        op("const", {"w": typed("fp32", *other)}, val=const(weight)),
        op("add", {"a": typed("fp32", *given)}, x="x", y="x"),
        op("einsum", {"e": typed("fp32", *made)},
           values=["w", "a"] if constant == "left" else ["a", "w"],
           equation=const(f"{letters}chw,{letters}whu->{letters}chu")),
        op("add", {"y": typed("fp32", *made)}, x="e", y="e"),
    ]  # fmt: skip
    calls = [{"x": rng.standard_normal(given).astype(np.float32)} for _ in range(3)]
    inputs = {"x": typed("fp32", *given)}
    same(steps, ["y"], inputs, calls, in_c=columns < 17 or batch != (2,))


def test_a_stretch_holds_what_it_has_the_address_of(tmp_path):
    """Every address of its table that is no part of what a call is given, or makes."""
    x, matrix = typed("fp32", 1, 64, 1, 4), typed("fp32", 64, 64, 1, 1)
    steps = [
        op("const", {"w": matrix}, val=const(np.ones((64, 64, 1, 1), np.float32))),
        op("conv", {"c": x}, x="x", weight="w"),
        op("add", {"y": x}, x="c", y="c"),
    ]
    program = MLProgram(write(tmp_path / "p", steps, ["y"], {"x": x}))
    program.predict(program.random_inputs())
    (stretch,) = program.compiled.parts
    assert any(isinstance(owner, native.Weight) for owner in stretch.owners)


def test_kernels_are_given_owners_and_no_addresses():
    x, y = torch.ones(4), torch.empty(4)
    activation = native.kernel("activation")
    with pytest.raises(ctypes.ArgumentError):
        activation(x.data_ptr(), y, 4, 0, False, 1)
    assert activation(x, y, 4, 0, False, 1) == 0 and torch.allclose(y, torch.sigmoid(x))


def test_a_copy_that_torch_calls_a_view_is_not_recorded():
    """As it does of `contiguous`, where tensors know of inference."""
    with torch.inference_mode():
        recorder = record.Recorder(plan=None)
        x, constant = recorder.own(torch.empty(2, 3)), torch.ones(2, 3).t()
        with recorder, pytest.raises(NotNative, match="torch copies it"):
            x.t().contiguous()
        with recorder:
            copy = constant.contiguous()
    assert isinstance(recorder.owner(copy), ConstantMemory) and recorder.owner(x.t()).tensor is x


def test_values_that_shrink_as_a_size_grows(same):
    pairs = [("mul", "a", "p", "p"), ("add", "b", "a", "p"), ("sub", "c", "b", "a"),
             ("mul", "d", "c", "b"), ("add", "e", "d", "a"), ("mul", "z", "x", "x")]  # fmt: skip
    rest = op("slice_by_index", {"p": OPEN}, x="w", begin="v", end=const([70, 6]))
    steps = [*sizes(0), rest, *(op(kind, {name: OPEN}, x=x, y=y) for kind, name, x, y in pairs)]
    calls = [{"x": x, "w": of_rows(70)[0]} for x in of_rows(3, 4, 5, 7, 3, 20, 4, 25)]
    same(steps, ["e", "z"], {"x": OPEN, "w": typed("fp32", 70, 6)}, calls, in_c=False)


def test_a_part_of_a_constant_by_a_size(same):
    table = np.arange(1200, dtype=np.float32).reshape(200, 6)
    part = op("slice_by_index", {"p": OPEN}, x=const(table), begin=const([0, 0]), end="v")
    steps = [*sizes(6), part, op("add", {"y": OPEN}, x="x", y="p"),
             op("mul", {"z": OPEN}, x="y", y="y")]  # fmt: skip
    calls = [{"x": x} for x in of_rows(3, 4, 5, 7, 3, 20, 4, 25)]
    same(steps, ["p", "y", "z"], {"x": OPEN}, calls, in_c=False)


def test_parts_of_one_constant_of_whole_numbers(same):
    whole = const(np.arange(1, 65, dtype=np.int32))
    parts = [op("slice_by_index", {name: FOUR}, x=whole, begin=const([at]), end=const([at + 4]))
             for name, at in (("p", 40), ("q", 20))]  # fmt: skip
    steps = [*parts, op("add", {"y": FOUR}, x="k", y="p"), op("mul", {"z": FOUR}, x="y", y="q")]
    same(steps, ["y", "z"], {"k": FOUR}, [{"k": np.arange(4, dtype=np.int32)}])


def test_what_a_failing_step_was_given_is_still_there(same):
    """Its first call has begun: indices that are not neighbours are copied for it."""
    half, eight = typed("fp32", 4, 4), typed("int32", 8)
    steps = [
        op("add", {"a": ROWS}, x="x", y="x"),
        op("slice_by_index", {"v": half}, x="a", begin=const([0, 0]), end=const([4, 8]),
           stride=const([1, 2])),
        op("add", {"i2": eight}, x="i", y="i"),
        op("slice_by_index", {"j": FOUR}, x="i2", begin=const([0]), end=const([8]),
           stride=const([2])),
        op("gather", {"g": half}, x="v", indices="j", axis=const(0),
           validate_indices=const(False)),
        op("add", {"z": half}, x="g", y="g"),
    ]  # fmt: skip
    given = {"x": np.arange(32, dtype=np.float32).reshape(4, 8),
             "i": np.int32([0, 0, 1, 0, 40, 0, 1, 0])}  # fmt: skip
    same(steps, ["z"], {"x": ROWS, "i": eight}, [given])


def test_sizes_that_python_reads_after_a_step_that_failed(same):
    two, part = typed("int32", 2), typed("fp32", 3, 6)
    steps = [
        op("shape", {"shape": two}, x="x"),
        op("sub", {"e": two}, x="shape", y=const(np.int32([1, 2]))),
        op("add", {"a": ROWS}, x="x", y="x"),
        op("gather", {"g": ROWS}, x="a", indices="i", axis=const(0),
           validate_indices=const(False)),
        op("slice_by_index", {"w": part}, x="g", begin=const([0, 0]), end="e"),
        op("add", {"z": part}, x="w", y="w"),
    ]  # fmt: skip
    given = {"x": np.arange(32, dtype=np.float32).reshape(4, 8), "i": np.int32([0, 1, 40, 1])}
    same(steps, ["z"], {"x": ROWS, "i": FOUR}, [given])


def test_a_slice_of_many_axes_is_left_to_python(same):
    sizes = (2,) + (1,) * 39
    many, places = typed("fp32", *sizes), typed("int32", 40)
    steps = [
        op("reshape", {"r": many}, x="x", shape=const(list(sizes))),
        op("slice_update", {"u": many}, x="r", update="x", begin="k", end="e"),
        op("add", {"y": many}, x="u", y="u"),
        op("mul", {"z": many}, x="y", y="u"),
    ]
    given = {"x": np.ones(sizes, np.float32), "k": np.zeros(40, np.int32), "e": np.int32(sizes)}
    same(steps, ["z"], {"x": many, "k": places, "e": places}, [given], in_c=False)


def test_a_state_that_was_read_before_keeps_its_copy(same):
    """A part of it is changed and put back, while a call between reads the state of before."""
    state, part, three = typed("fp32", 2, 4, 3), typed("fp32", 1, 4, 3), typed("int32", 3)
    whole = {"begin": const([0, 0, 0]), "end": const([1, 4, 3])}
    steps = [
        op("read_state", {"k": state}, input="s"),
        op("reduce_sum", {"m": typed("fp32", 2, 4, 1)}, x="k", axes=const([2]),
           keep_dims=const(True)),
        op("read_state", {"k2": state}, input="s"),
        op("slice_by_index", {"old": part}, x="k", **whole),
        op("slice_by_index", {"part": part}, x="k2", **whole),
        op("slice_update", {"new": part}, x="part", update="row", begin="b", end="e"),
        op("add", {"t": part}, x="old", y="new"),
        op("slice_update", {"u": state}, x="k2", update="new", **whole),
        op("write_state", {}, input="s", data="u"),
        op("mul", {"z": part}, x="t", y="t"),
    ]  # fmt: skip
    inputs = {"row": typed("fp32", 1, 1, 3), "b": three, "e": three,
              "s": typed("fp32", 2, 4, 3, kind="state")}  # fmt: skip
    given = {"row": np.full((1, 1, 3), 5, np.float32), "b": np.int32([0, 1, 0]),
             "e": np.int32([1, 2, 3])}  # fmt: skip
    same(steps, ["t", "z", "m"], inputs, [given, given])


def test_a_slice_that_names_some_axes_alone_counts():
    states = States({"s": torch.zeros(2, 8, 4)})
    states.note("s", 0)
    update_state(states, "s", torch.ones(2, 1, 4), begin=[0, 5], end=[2, 6])
    assert states["s"][0, 5, 0] == 1 and states.written == {"s": 6}


def test_a_step_that_cannot_be_recorded_leaves_no_trace(tmp_path, monkeypatch):
    """The steps before it do not forget how much of the state was written that it writes."""
    monkeypatch.setattr(record, "LARGEST", 1000)  # bytes, of which the state has more
    state, row = typed("fp32", 2, 64, 4), typed("fp32", 2, 1, 4)
    at = {"begin": const([0, 3, 0]), "end": const([2, 4, 4])}
    steps = [
        op("read_state", {"k": state}, input="s"),
        op("add", {"a": row}, x="x", y="x"),
        op("mul", {"b": row}, x="a", y="x"),
        op("slice_update", {"u": state}, x="k", update="b", **at),
        op("write_state", {}, input="s", data="u"),
    ]
    inputs = {"x": row, "s": typed("fp32", 2, 64, 4, kind="state")}
    program = MLProgram(write(tmp_path / "p", steps, ["b"], inputs))
    held = program.make_state()
    program.predict({"x": np.ones((2, 1, 4), np.float32)}, held)
    assert any(isinstance(part, NativeStretch) for part in program.compiled.parts)
    assert held._states.written == {"s": 4}


def test_copies_of_states_know_nothing():
    states = States({"s": torch.ones(2, 8, 4)})
    states.note("s", 8)
    for copy in (pickle.loads(pickle.dumps(states)), deepcopy(states)):
        assert copy.written == {} and torch.equal(copy["s"], states["s"])
    states["t"] = torch.zeros(1)
    assert states.written == {"s": 8}
