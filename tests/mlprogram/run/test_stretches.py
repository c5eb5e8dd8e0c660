"""What runs in C gives what its steps give one by one, to the bit: see `run/stretches.py`."""

from pathlib import Path

from _long import long_but
from _package import const, op, typed, write
from mlprogram import MLProgram
from mlprogram.kernel_report import plan_report, planned
from mlprogram.kernels import compiled, native
from mlprogram.kernels.table import KERNELS
from mlprogram.run.asked import PLAIN
from mlprogram.run.stretches import NativeStretch
import numpy as np
import pytest
from random_programs import equal, faults, opened, outcome
import torch

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

X = typed("fp32", 2, 4, 6)


def stretches(program: MLProgram) -> list[NativeStretch]:
    parts = getattr(program.compiled, "parts", ())
    return [part for part in parts if isinstance(part, NativeStretch)]


def floats(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 4, 6)).astype(np.float32)


def check(program: MLProgram, calls: int = 2, inputs=None) -> int:
    """Every function equals itself step by step, outputs and states. How many steps ran in C."""
    steps = 0
    for name in program.functions:
        one = program.function(name)
        other = MLProgram(one.package, name, one.precision, without=["runner"], _shared=one._shared)
        ours, theirs = one.make_state(), other.make_state()
        for seed in range(calls):
            given = inputs(seed) if inputs else one.random_inputs(seed)
            found, right = outcome(one, given, ours), outcome(other, given, theirs)
            wrong = []
            if isinstance(right, str):
                assert found == right
            else:
                assert found.keys() == right.keys()
                wrong += [key for key in found if not equal(found[key], right[key])]
            for key in one.states:
                wrong += [] if equal(ours.read_state(key), theirs.read_state(key)) else [key]
            assert not wrong, (name, wrong)
        assert not stretches(other)
        steps += sum(len(stretch.steps) for stretch in stretches(one))
    return steps


# --- random programs ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", long_but(range(10), 0))
def test_random_programs_of_every_op_that_runs_in_c(part, tmp_path):
    """1,500 in all, of operands of every form, and every op already in the part that always runs;
    `make random-programs` has 20,000."""
    seen: set[str] = set()
    for seed in range(150 * part, 150 * part + 150):
        made, program = opened(seed, tmp_path)
        assert not (wrong := faults(made, program)), (seed, wrong)
        steps = [step for stretch in stretches(program) for step in stretch.steps]
        seen |= {step.kernel or step.operation.type for step in steps}
    assert part or seen >= PLAIN | {kernel.name for kernel in KERNELS if kernel.compiled}


def test_attention_of_a_constant(tmp_path):
    """Of random programs this one alone has it, of as many columns as are left out."""
    assert not faults(*opened(14472, tmp_path))


# --- a decoder ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("tokens", [1, 8])
def test_a_decoder_is_one_stretch(decoder_of, tokens, precision):
    """Though the position of the new rows is known at run time only."""
    program = MLProgram(decoder_of(tokens), precision=precision)
    assert [type(part) for part in program.compiled.parts] == [NativeStretch]
    assert check(program, 3) > 0


# --- memory ---------------------------------------------------------------------------------------


@pytest.fixture
def decoder(decoder_of):
    return MLProgram(decoder_of(1))


def test_outputs_are_not_overwritten_and_states_may_be_replaced(decoder):
    inputs, state = decoder.random_inputs(), decoder.make_state()
    first = decoder.predict(inputs, state)
    kept = {name: value.copy() for name, value in first.items()}
    caches = {name: state.read_state(name) for name in decoder.states}
    second = decoder.predict(decoder.random_inputs(1), state)
    assert any(not equal(second[name], first[name]) for name in first)
    assert all(equal(first[name], kept[name]) for name in first)
    for name, value in caches.items():
        state.write_state(name, value)  # another tensor from here on
    again = decoder.predict(decoder.random_inputs(1), state)
    assert all(equal(again[name], second[name]) for name in second)
    for name in decoder.states:  # with strides that the table does not know
        turned = state.tensors[name].permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
        state.tensors[name].copy_(torch.tensor(caches[name])), turned.copy_(state.tensors[name])
        state.tensors[name] = turned
    again = decoder.predict(decoder.random_inputs(1), state)
    assert all(equal(again[name], second[name]) for name in second)


def test_the_arena_is_smaller_than_what_lies_in_it(decoder):
    (stretch,) = stretches(decoder)
    assert 0 < stretch.arena < 0.7 * stretch.held


# --- what is not as declared ----------------------------------------------------------------------


def chain(path: Path, declared: tuple[int, ...]) -> MLProgram:
    """relu, which torch computes, declared to make this of (2, 4, 6); then a stretch."""
    made = typed("fp32", *declared)
    first = op("relu", {"a": made}, x="x")
    rest = [op("add", {"b": made}, x="a", y="a"), op("mul", {"y": X}, x="b", y="b")]
    return MLProgram(write(path, [first, *rest], ["y"], {"x": X}))


def test_values_that_are_not_as_declared_are_left_to_python(tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
    program = chain(tmp_path / "wrong.mlpackage", (2, 4, 7))
    assert len(stretches(program)) == 1
    assert equal(program.predict({"x": x})["y"], (2 * np.maximum(x, 0)) ** 2)


def test_python_is_given_what_no_call_reads(tmp_path):
    """A view that nobody reads, of a value that calls of compiled code have no use for."""
    flat = typed("fp32", 8, 6)
    ops = [
        op("relu", {"a": typed("fp32", 2, 4, 7)}, x="x"),  # which it is not
        op("relu", {"b": X}, x="x"),
        op("reshape", {"c": flat}, x="b", shape=const([8, 6])),
        op("add", {"d": X}, x="a", y="a"),
        op("mul", {"y": X}, x="d", y="d"),
    ]
    program = MLProgram(write(tmp_path / "p.mlpackage", ops, ["y"], {"x": X}))
    assert check(program) == 3


def test_python_writes_a_state_that_an_earlier_stretch_read(tmp_path):
    """The value that was read, which an update in place has no use for, is not given."""
    row = {"begin": const([1, 0, 0]), "end": const([2, 4, 6])}
    ops = [
        op("read_state", {"r": X}, input="s"),
        op("add", {"a": X}, x="r", y="x"),
        op("mul", {"b": X}, x="a", y="x"),
        op("relu", {"c": X}, x="b"),
        op("add", {"d": X}, x="c", y="x"),
        op("slice_by_index", {"u": typed("fp32", 1, 4, 6)}, x="d", **row),
        op("slice_update", {"n": X}, x="r", update="u", **row),
        op("write_state", {}, input="s", data="n"),
        op("add", {"y": X}, x="d", y="d"),
    ]
    inputs = {"x": X, "s": typed("fp32", 2, 4, 6, kind="state")}
    program = MLProgram(write(tmp_path / "p.mlpackage", ops, ["y"], inputs))
    assert check(program) == 8
    given, ours, theirs = {"x": floats(0)}, program.make_state(), program.make_state()
    ours.tensors["s"] = torch.zeros(6, 4, 2).permute(2, 1, 0)  # strides that the table cannot know
    assert equal(program.predict(given, ours)["y"], program.predict(given, theirs)["y"])
    assert equal(ours.read_state("s"), theirs.read_state("s"))


@pytest.mark.parametrize("row", [0, 3, -1, 4])
def test_what_goes_back_to_a_state_is_changed_in_place(tmp_path, row):
    """As torch.export writes a cache; for a row that there is none of nothing is written."""
    layer = {"begin": const([1, 0, 0]), "end": const([2, 4, 6])}
    row_of = {"end_mask": const([True, False, True]), "begin_mask": const([True, False, True])}
    ops = [
        op("add", {"end": typed("int32", 3)}, x="k", y=const(np.array([1, 1, 6], np.int32))),
        op("mul", {"u": typed("fp32", 1, 1, 6)}, x="x", y="x"),
        op("read_state", {"r": X}, input="s"),
        op("slice_by_index", {"a": typed("fp32", 1, 4, 6)}, x="r", **layer),
        op("slice_update", {"b": typed("fp32", 1, 4, 6)}, x="a", update="u", begin="k", end="end",
           **row_of),
        op("slice_update", {"n": X}, x="r", update="b", **layer),
        op("write_state", {}, input="s", data="n"),
        op("read_state", {"now": X}, input="s"),
        op("add", {"y": X}, x="now", y="now"),
    ]  # fmt: skip
    inputs = {"x": typed("fp32", 1, 1, 6), "k": typed("int32", 3)}
    inputs["s"] = typed("fp32", 2, 4, 6, kind="state")
    program = MLProgram(write(tmp_path / "p.mlpackage", ops, ["y"], inputs))

    def given(seed: int) -> dict[str, np.ndarray]:
        at = np.array([0, seed % 4 if seed < 2 else row, 0], np.int32)
        return {"x": floats(seed)[:1, :1], "k": at}

    assert check(program, 4, given) == len(ops)
    assert stretches(program)[0].calls == 4


ATTENTION = "scaled_dot_product_attention"
ROWS, MASK = typed("fp32", 1, 2, 4, 8), typed("fp32", 1, 1, 4, 4)


def attended(seed: int) -> dict[str, np.ndarray]:
    """Queries, two masks, and keys of which three are empty: those are left out where closed."""
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((2, 1, 2, 4, 8), np.float32)
    k[..., 1:, :] = 0
    a, b = np.where(random.random((2, 1, 1, 4, 4)) < 0.5, 0, -40000).astype(np.float32)
    a[..., 0] = b[..., 0] = 0
    return {"q": q, "k": k, "a": a, "b": b}


def test_a_mask_is_looked_at_once(tmp_path):
    """By all attentions that read it, anew in each call; and every mask by itself."""
    names = ["q", "y0", "y1", "y2", "y3"]
    ops = [
        op(ATTENTION, {y: ROWS}, query=x, key="k", value="k", attn_mask=mask)
        for x, y, mask in zip(names, names[1:], "abab", strict=False)
    ]
    inputs = {"q": ROWS, "k": ROWS, "a": MASK, "b": MASK}
    program = MLProgram(write(tmp_path / "m.mlpackage", ops, ["y3"], inputs))
    assert check(program, 20, attended) == 4
    assert [stretch.calls for stretch in stretches(program)] == [6]


def test_a_mask_in_a_state_is_looked_at_again(tmp_path):
    """A step may have written it."""
    whole = {"begin": const([0, 0, 0, 0]), "end": const([1, 1, 4, 4])}
    ops = [
        op("read_state", {"r": MASK}, input="s"),
        op(ATTENTION, {"y": ROWS}, query="q", key="k", value="k", attn_mask="r"),
        op("slice_update", {"n": MASK}, x="r", update="a", **whole),
        op("write_state", {}, input="s", data="n"),
        op("read_state", {"now": MASK}, input="s"),
        op(ATTENTION, {"z": ROWS}, query="y", key="k", value="k", attn_mask="now"),
    ]
    inputs = {"q": ROWS, "k": ROWS, "a": MASK, "s": typed("fp32", 1, 1, 4, 4, kind="state")}
    program = MLProgram(write(tmp_path / "s.mlpackage", ops, ["z"], inputs))

    def given(seed: int) -> dict[str, np.ndarray]:
        return {name: x for name, x in attended(seed).items() if name != "b"}

    assert check(program, 20, given) == len(ops)


def test_parts_without_values(tmp_path):
    """torch.cat takes them, and there is nothing to copy."""
    none = const(np.zeros((2, 0, 6), np.float32))
    joined = op("concat", {"b": X}, values=["a", none], axis=const(1), interleave=const(False))
    first = op("add", {"a": X}, x="x", y="x")
    last = op("mul", {"y": X}, x="b", y="a")
    path = write(tmp_path / "p.mlpackage", [first, joined, last], inputs={"x": X})
    assert check(MLProgram(path)) == 3


@pytest.mark.parametrize("rows, columns", [(2, 3), (1, 6)])
def test_what_is_given_may_be_a_part_of_something(tmp_path, rows, columns):
    """A view that Python made, whose memory begins elsewhere, and an output that shares it."""
    part, turned = typed("fp32", rows, 4, columns), typed("fp32", rows, columns, 4)
    shape, size = const([rows, columns, 4]), const([rows, 4, columns])
    ops = [
        op("slice_by_size", {"a": part}, x="x", begin="at", size=size),
        op("reshape", {"y": turned}, x="a", shape=shape),
        op("add", {"b": turned}, x="y", y="y"),
        op("mul", {"z": turned}, x="b", y="y"),
    ]
    inputs = {"x": X, "at": typed("int32", 3)}
    program = MLProgram(write(tmp_path / "part.mlpackage", ops, ["y", "z"], inputs))
    given = {"x": floats(0), "at": np.array([2 - rows, 0, 6 - columns], np.int32)}
    assert check(program, 1, lambda _: given) == 3


def test_what_follows_a_call_that_fails_runs_from_python(tmp_path, monkeypatch):
    """Wherever it fails, with all that was made before."""
    made, program = opened(1, tmp_path)
    given, real = made.arrays(1), compiled.run_steps
    right = program.predict(given)

    def failing(stretch: NativeStretch, at: int):
        def run_steps(table, words, *more):
            end = at if words == stretch.tables.at(0).length else words
            return max(real(table, end, *more), at if end == at else -1)

        return run_steps

    for stretch in stretches(program):
        for at in stretch.step_at:
            monkeypatch.setattr(compiled, "run_steps", failing(stretch, at))
            found = program.predict(given)
            assert all(equal(found[name], right[name]) for name in right), at


# --- switches and report --------------------------------------------------------------------------


def test_switches(decoder, monkeypatch):
    package = decoder.package
    assert stretches(decoder)
    for other in (
        MLProgram(package, without=["runner"]),
        MLProgram(package, optimize=False),
        MLProgram(package, precision="ane"),
        decoder.plain(),
    ):
        assert not stretches(other)
    monkeypatch.setattr(native, "available", lambda: False)
    assert not stretches(MLProgram(package))


def test_the_report_says_what_runs_in_c(tmp_path):
    program = chain(tmp_path / "chain.mlpackage", (2, 4, 6))
    text = plan_report(planned(program.package.path))
    assert "2 of 3 steps run in C, in 1 stretch" in text
    assert "1  relu  torch computes it" in text
