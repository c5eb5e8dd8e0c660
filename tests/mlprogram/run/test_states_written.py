"""What is known of how far states are filled, and that no result depends on it: `run/states.py`."""

from random import Random

from _package import op, typed, write
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.ops.tensor_transformation import slice_of, write_slice
from mlprogram.run.slices import update_state
from mlprogram.run.states import States, slots_written
import numpy as np
import pytest
import torch

SHAPE = (3, 7, 4)


def some_slice(random: Random) -> dict:
    """Arguments of a slice of SHAPE, of any form that MIL has."""
    flags = [[random.random() < 0.3 for _ in SHAPE] for _ in range(2)]
    squeezed = [random.random() < 0.2 for _ in SHAPE]
    stride = [random.choice([1, 1, 2, 3, -1, -2]) for _ in SHAPE]
    begin = [random.randrange(-size, size) for size in SHAPE]
    end = [random.randrange(-size, size + 3) for size in SHAPE]
    masks = {"begin_mask": flags[0], "end_mask": flags[1], "squeeze_mask": squeezed}
    kept = {k: v for k, v in {"stride": stride, **masks}.items() if random.random() < 0.5}
    return {"begin": begin, "end": end, **kept}


def test_what_is_noted_is_the_last_slot_that_was_written():
    random, found = Random(0), set()
    for _ in range(2000):
        view, states = some_slice(random), States({"s": torch.zeros(SHAPE)})
        states.note("s", before := random.randrange(3))
        update_state(states, "s", torch.ones_like(slice_of(states["s"], **view)), **view)
        assert states.written["s"] == max(before, slots_written(states["s"]))
        found.add(states.written["s"])
    assert found == {*range(SHAPE[1] + 1)}


def test_an_update_that_fails_leaves_nothing_known():
    states = States({"s": torch.zeros(SHAPE)})
    states.note("s", 0)
    with pytest.raises(ValueError, match="an update of shape"):
        update_state(states, "s", torch.ones(1), begin=[0, 0, 0], end=[3, 7, 4])
    assert not states.written
    write_slice(states["s"], torch.ones(3, 1, 4), [0, 6, 0], [3, 7, 4])
    assert slots_written(states["s"]) == 7


def test_minus_zero_is_a_byte_other_than_zero():
    assert slots_written(torch.tensor([[0.0], [-0.0], [0.0]], dtype=torch.float16)) == 2


# --- of a decoder ---------------------------------------------------------------------------------


@pytest.fixture
def decoder(decoder_of):
    return MLProgram(decoder_of(1))


def inputs_at(program: MLProgram, position: int) -> dict:
    """Inputs of a step, where the mask closes all slots from `position` on."""
    given = program.random_inputs(position)
    mask = np.zeros(given["mask"].shape, np.float16)
    mask[..., position:-1] = -40000
    return given | {"mask": mask, "position": np.int32([position])}


def steps(program: MLProgram, state, positions) -> list[dict]:
    return [program.predict(inputs_at(program, at), state) for at in positions]


def same(found: list[dict], right: list[dict]) -> bool:
    pairs = zip(found, right, strict=True)
    return all(np.array_equal(a[n], b[n], equal_nan=True) for a, b in pairs for n in b)


@pytest.mark.skipif(not native.available(), reason=native.status()[1])
def test_a_step_reads_the_slots_that_were_written(decoder):
    """A value that was put behind the executor's back, where it knows of zeros, is not read."""
    state = decoder.make_state()
    assert set(state._states.written.values()) == {0}
    expected = steps(decoder, decoder.make_state(), range(4))
    steps(decoder, state, range(3))
    assert set(state._states.written.values()) == {3}
    state._states["keys"][..., 10, :] = float("nan")
    assert same(steps(decoder, state, [3]), expected[3:])


@pytest.mark.parametrize("how", ["lent", "lent before", "written"])
def test_what_others_put_into_a_closed_slot_counts(decoder, how):
    """As step by step: not a number shows through the mask."""
    plain = MLProgram(decoder.package, decoder.name, without=["runner"], _shared=decoder._shared)
    answers = []
    for program in (decoder, plain):
        state = program.make_state()
        lent = state.tensors if how == "lent before" else None
        first = steps(program, state, range(3))
        if how == "written":
            keys = state.read_state("keys")
            keys[..., 10, :] = np.nan
            state.write_state("keys", keys)
            assert state._states.written["keys"] == 11
        else:
            (lent or state.tensors)["keys"][..., 10, :] = float("nan")
        answers.append([*first, *steps(program, state, [3, 4])])
    assert same(*answers) and np.isnan(answers[0][-1]["hidden_out"]).any()


# --- a state that is cleared ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["steps", "lent", "written", "turned", "replaced"])
def test_clearing_leaves_no_trace(decoder, how):
    """Wherever values came from, and whether or not it is known how far they reach."""
    state = decoder.make_state()
    expected = steps(decoder, decoder.make_state(), range(3))
    steps(decoder, state, range(5, 9))
    nothing = np.full_like(state.read_state("keys"), np.nan)
    if how == "lent":
        state.tensors["keys"][..., -1, :] = float("nan")
    elif how == "written":
        state.write_state("keys", nothing)
    elif how == "turned":  # its axes lie in another order
        shape = nothing.swapaxes(-3, -2).shape
        state.write_state("keys", np.zeros(shape, nothing.dtype).swapaxes(-3, -2))
        steps(decoder, state, range(20, 30))
    elif how == "replaced":
        state._states["keys"] = torch.tensor(nothing)
    before = dict(state._states)
    state.clear()
    assert not any(slots_written(tensor) for tensor in state._states.values())
    kept = {name for name, tensor in before.items() if state._states[name] is tensor}
    assert kept == {"lent": set(), "replaced": {"values"}}.get(how, {"keys", "values"})
    assert set(state._states.written.values()) == (set() if how == "lent" else {0})
    assert how != "lent" or before["keys"][..., -1, :].isnan().all()  # whoever has it keeps it
    assert same(steps(decoder, state, range(3)), expected)


def test_random_slices_are_cleared():
    random = Random(1)
    for _ in range(500):
        states = States({"s": torch.zeros(SHAPE)})
        states.note_zeros("s")
        for _ in range(3):
            view = some_slice(random)
            update_state(states, "s", torch.ones_like(slice_of(states["s"], **view)), **view)
        states.clear_all()
        assert not states["s"].any() and states.written == {"s": 0}


@pytest.mark.parametrize("optimize", [True, False])
def test_what_was_read_of_a_state_outlives_its_zeros(tmp_path, optimize):
    """A state may be an output as it is, of any rank and size."""
    sizes = [(3, 2, 1024), (5,), ()]
    types = [typed("fp16", *size) for size in sizes]
    ops = [op("read_state", {f"y{i}": t}, input=f"s{i}") for i, t in enumerate(types)]
    inputs = {f"s{i}": typed("fp16", *size, kind="state") for i, size in enumerate(sizes)}
    path = write(tmp_path / "p.mlpackage", ops, [f"y{i}" for i in range(3)], inputs)
    program = MLProgram(path, optimize=optimize)
    state = program.make_state()
    for i, size in enumerate(sizes):
        state.write_state(f"s{i}", np.ones(size))
    ones = program.predict({}, state)
    state.clear()
    assert all((array == 1).all() for array in ones.values())
    assert not any(array.any() for array in program.predict({}, state).values())
