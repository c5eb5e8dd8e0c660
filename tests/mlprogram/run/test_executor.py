"""The executor: programs built with coremltools, saved, read back and run."""

import gc
import json
import subprocess
import sys

from _foreign import IN_SINGLE, build, built
from _package import X, const, op, typed
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.reader import Package
from mlprogram.run import live as executor
import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A program with a state: rows are written at a position, and their sum comes out."""
    path = tmp_path_factory.mktemp("counter") / "counter.mlpackage"
    inputs = ((1, 2, 4), types.fp16), ((1,), types.int32)

    @build(path, *inputs, states=[(1, 8, 4)], **IN_SINGLE)
    def made(rows, position, memory):
        before = mb.read_state(input=memory)
        seen = mb.reduce_sum(x=before, axes=[1], keep_dims=False, name="before")
        zero = np.zeros(1, np.int32)
        begin = mb.concat(values=[zero, position, zero], axis=0)
        end = mb.add(x=begin, y=np.array([1, 2, 4], np.int32))
        after = mb.slice_update(x=before, update=rows, begin=begin, end=end)
        mb.coreml_update_state(state=memory, value=after)
        return mb.add(x=seen, y=seen, name="twice")

    return made


def _holds(value: object, elements: int) -> bool:
    return type(value) is torch.Tensor and value.numel() == elements


class TestPredict:
    def test_an_output_of_rank_0_is_given_as_core_ml_gives_it(self, make):
        """coremltools' `compare_backend`: "Core ML does not support scalar as output"."""
        total = op("reduce_sum", {"y": typed("fp32")}, x="x", axes=const([0, 1]))
        program, given = (
            MLProgram(make([total, op("add", {"z": X}, x="x", y="y")], ["y", "z"])),
            {"x": np.ones((2, 3))},
        )
        for running in (program, program.plain()):
            found = running.predict(given)
            assert found["y"].shape == (1,) and found["y"].tolist() == [6]
            assert found["z"].shape == (2, 3)
            assert dict(running.trace(given))["y"].shape == ()

    def test_trace_holds_no_value_and_no_mode(self, watched):
        @built(mb.TensorSpec((77,)))
        def running(x):
            for _ in range(20):
                x = mb.exp(x=mb.log(x=x))
            return mb.identity(x=x, name="y")

        most, tensors = watched(executor, "as_array"), []
        for step, _ in enumerate(running.trace({"x": np.ones(77)})):
            assert not torch.is_inference_mode_enabled()
            if step % 10 == 9:
                tensors.append(sum(_holds(o, 77) for o in gc.get_objects()))
        assert len(tensors) >= 4 and max(tensors) <= 4  # the input, two of an op, the copy
        assert most() <= 2

    def test_wrong_choices(self, package):
        with pytest.raises(InvalidInput, match="precision must be"):
            MLProgram(package, precision="int8")
        with pytest.raises(InvalidInput, match="no function 'decode'; it has: main"):
            MLProgram(package, "decode")

    def test_opening_leaves_the_package_as_it_is(self, counter):
        before = {f: f.read_bytes() for f in counter.rglob("*") if f.is_file()}
        program = MLProgram(counter)
        program.predict(program.random_inputs(), program.make_state())
        assert before == {f: f.read_bytes() for f in counter.rglob("*") if f.is_file()}


class TestState:
    @pytest.mark.parametrize("optimize", [True, False])
    def test_rows_stay_from_call_to_call(self, counter, optimize):
        program = MLProgram(counter, optimize=optimize)
        state, other = program.make_state(), program.make_state()
        memory = state.tensors["memory"].data_ptr()
        rows = np.arange(8, dtype=np.float16).reshape(1, 2, 4)
        call = {"rows": rows, "position": np.array([3], np.int32)}
        first = program.predict(call, state)["twice"]
        second = program.predict(call | {"position": np.array([0], np.int32)}, state)["twice"]
        third = program.predict(call, state)["twice"]
        np.testing.assert_array_equal(first, 0)
        np.testing.assert_array_equal(second, 2 * rows.sum(1))
        np.testing.assert_array_equal(third, 4 * rows.sum(1))
        np.testing.assert_array_equal(other.read_state("memory"), 0)
        assert (state.tensors["memory"].data_ptr() == memory) == optimize  # written in place

    def test_a_state_is_read_and_written_from_outside(self, counter):
        program = MLProgram(counter)
        state = program.make_state()
        state.write_state("memory", np.ones((1, 8, 4)))
        call = {"rows": np.zeros((1, 2, 4)), "position": np.array([0], np.int32)}
        np.testing.assert_array_equal(program.predict(call, state)["twice"], 16)
        assert state.read_state("memory").sum() == 24
        with pytest.raises(InvalidInput, match="no state 'other'"):
            state.read_state("other")
        with pytest.raises(InvalidInput, match="has shape"):
            state.write_state("memory", np.ones(3))
        for value in (None, "rows", [1, [2]], {}, np.array([{}])):
            with pytest.raises(TypeError, match=r"^state 'memory' has shape \(1, 8, 4\)[,( ]"):
                state.write_state("memory", value)

    def test_a_state_is_needed(self, counter):
        with pytest.raises(InvalidInput, match="keeps state"):
            MLProgram(counter).predict({"rows": np.zeros((1, 2, 4)), "position": np.zeros(1, int)})


def test_no_package(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for name in ("nothing.mlpackage", "loop", "a\0b"):
        for read in (Package, MLProgram):
            with pytest.raises(InvalidPackage, match="no such package"):
                read(tmp_path / name)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08")  # protobuf reads it as an empty Model
    for path in (tmp_path, tmp_path / "model.onnx"):
        with pytest.raises(InvalidPackage, match=r"not a \.mlpackage"):
            Package(path)


# --- `python -m mlprogram.pipe`, as a host in another language talks to it -----------------------


@pytest.fixture(scope="module")
def ask():
    """`ask(request, *arrays)` -> the answer, and the bytes behind it."""
    process = subprocess.Popen([sys.executable, "-m", "mlprogram.pipe"], stdin=-1, stdout=-1)
    assert process.stdin and process.stdout
    requests, answers = process.stdin, process.stdout

    def ask(request, *arrays):
        payload = b"".join(array.tobytes() for array in arrays)
        line = json.dumps(request | ({"bytes": len(payload)} if payload else {}))
        requests.write(line.encode() + b"\n" + payload)
        requests.flush()
        answer = json.loads(answers.readline())
        return answer, answers.read(answer.pop("bytes", 0))

    yield ask
    requests.close()
    assert process.wait() == 0
    answers.close()


def test_calls_and_states(counter, ask):
    program = MLProgram(counter)
    expected, (name,) = program.make_state(), program.functions
    state, number = 0, ask({"load": str(counter), "function": name})[0]["function"]
    assert ask({"state": number}) == ({"state": state}, b"")
    ones = np.ones((1, 8, 4), np.float16)
    assert ask({"write": state, "name": "memory", "of": number}, ones) == ({}, b"")
    expected.write_state("memory", ones)
    rows, position = np.arange(8, dtype=np.float16).reshape(1, 2, 4), np.array([3], np.int32)
    call = {"call": number, "inputs": ["position", "rows"], "outputs": ["twice"]}
    for _ in range(2):
        _, output = ask(call | {"state": state}, position, rows)
        right = program.predict({"rows": rows, "position": position}, expected)["twice"]
        dtype = {"fp16": np.float16, "fp32": np.float32}[program.outputs["twice"].dtype]
        np.testing.assert_array_equal(np.frombuffer(output, dtype), right.ravel())
    memory = np.frombuffer(ask({"read": state, "name": "memory"})[1], np.float16)
    np.testing.assert_array_equal(memory, expected.read_state("memory").ravel())
    assert ask({"state": number})[0] == {"state": 1}
    assert ask({"free": state}) == ({}, b"") and ask({"state": number})[0] == {"state": 2}
    assert "error" in ask({"read": state, "name": "memory"})[0]


def test_what_cannot_be_done_is_a_sentence(counter, ask, tmp_path):
    (tmp_path / "loop.mlpackage").symlink_to("loop.mlpackage")
    for name in ("none.mlpackage", "loop.mlpackage", "\0.mlpackage", 300 * "n" + ".mlpackage"):
        missing = {"load": str(tmp_path / name), "function": ""}
        assert ".mlpackage" in ask(missing)[0]["error"]
    assert "no function 'other'" in ask({"load": str(counter), "function": "other"})[0]["error"]
    assert "no request that is known" in ask({"what": 1})[0]["error"]
    (name,) = MLProgram(counter).functions
    number = ask({"load": str(counter), "function": name})[0]["function"]
    call = {"call": number, "inputs": ["position"], "outputs": ["twice"]}
    assert "announces 4" in ask(call, np.zeros(3, np.int32))[0]["error"]
    assert "state" in ask({"state": number})[0]
