"""The executor: programs built with coremltools, saved, read back and run."""

import gc
import json
import shutil
import subprocess
import sys

from _package import X, const, op, typed
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage, UnsupportedOp
from mlprogram.ops import OPS
from mlprogram.package.reader import Package
from mlprogram.run import program as executor
import numpy as np
import pytest
import torch


def save(program, path):
    """Convert a PyMIL program as coremltools does, and save it."""
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(program, compute_precision=ct.precision.FLOAT32, **options).save(str(path))
    return path


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A program with a state: rows are written at a position, and their sum comes out."""

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, 2, 4), dtype=types.fp16),
            mb.TensorSpec((1,), dtype=types.int32),
            mb.StateTensorSpec((1, 8, 4), dtype=types.fp16),
        ],
        opset_version=ct.target.iOS18,
    )
    def program(rows, position, memory):
        before = mb.read_state(input=memory)
        seen = mb.reduce_sum(x=before, axes=[1], keep_dims=False, name="before")
        zero = np.zeros(1, np.int32)
        begin = mb.concat(values=[zero, position, zero], axis=0)
        end = mb.add(x=begin, y=np.array([1, 2, 4], np.int32))
        after = mb.slice_update(x=before, update=rows, begin=begin, end=end)
        mb.coreml_update_state(state=memory, value=after)
        return mb.add(x=seen, y=seen, name="twice")

    return save(program, tmp_path_factory.mktemp("counter") / "counter.mlpackage")


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """A small convolution network with fp16 weights in the weight file."""
    generator = np.random.default_rng(0)
    first = (generator.standard_normal((48, 32, 1, 1)) / 6).astype(np.float16)
    second = (generator.standard_normal((32, 48, 1, 1)) / 6).astype(np.float16)
    bias = generator.standard_normal(32).astype(np.float16)

    @mb.program(
        input_specs=[mb.TensorSpec((1, 32, 1, 5), dtype=types.fp16)], opset_version=ct.target.iOS18
    )
    def program(x):
        h = mb.silu(x=mb.conv(x=x, weight=first), name="h")
        return mb.conv(x=h, weight=second, bias=bias, name="y")

    return save(program, tmp_path_factory.mktemp("mlp") / "mlp.mlpackage")


def _holds(value: object, elements: int) -> bool:
    return type(value) is torch.Tensor and value.numel() == elements


class TestPredict:
    def test_precisions_and_shortcuts_agree(self, mlp):
        x = np.random.default_rng(1).standard_normal((1, 32, 1, 5)).astype(np.float16)
        exact = MLProgram(mlp, precision="fp32").predict({"x": x})["y"]
        assert exact.dtype == np.float32
        plain = MLProgram(mlp, optimize=False).predict({"x": x})["y"]
        fast = MLProgram(mlp).predict({"x": x})["y"]
        assert plain.dtype == fast.dtype == np.float16
        np.testing.assert_allclose(fast, exact, rtol=5e-3, atol=5e-3)
        np.testing.assert_array_max_ulp(plain, fast, maxulp=2)

    def test_one_column_takes_the_vector_product(self, mlp):
        x = np.zeros((1, 32, 1, 5), np.float32)
        x[..., 0] = np.random.default_rng(2).standard_normal((1, 32, 1))
        program = MLProgram(mlp, precision="fp32")
        whole = program.predict({"x": x})["y"]
        again = program.predict({"x": x.astype(np.float64)})["y"]
        np.testing.assert_array_equal(whole, again)
        np.testing.assert_allclose(whole[..., 1], whole[..., 4], rtol=1e-6)

    def test_a_model_in_memory(self, mlp, tmp_path):
        copy = shutil.copytree(mlp, tmp_path / "copy.mlpackage")
        model = ct.models.MLModel(str(copy), skip_model_load=True)
        x = np.ones((1, 32, 1, 5), np.float16)
        found = MLProgram.from_mlmodel(model).predict({"x": x})["y"]
        np.testing.assert_array_equal(found, MLProgram(mlp).predict({"x": x})["y"])

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

    def test_trace_has_every_value_and_the_same_result(self, mlp):
        x = np.ones((1, 32, 1, 5), np.float16)
        program = MLProgram(mlp)
        values = dict(program.trace({"x": x}))
        assert list(values)[-1] == "y" and "h" in values
        np.testing.assert_array_equal(values["y"], program.predict({"x": x})["y"])

    def test_trace_holds_no_value_and_no_mode(self, watched):
        @mb.program(input_specs=[mb.TensorSpec((77,))], opset_version=ct.target.iOS18)
        def program(x):
            for _ in range(20):
                x = mb.exp(x=mb.log(x=x))
            return mb.identity(x=x, name="y")

        options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
        model = ct.convert(program, compute_precision=ct.precision.FLOAT32, **options)
        most, tensors = watched(executor, "as_array"), []
        for step, _ in enumerate(MLProgram.from_mlmodel(model).trace({"x": np.ones(77)})):
            assert not torch.is_inference_mode_enabled()
            if step % 10 == 9:
                tensors.append(sum(_holds(o, 77) for o in gc.get_objects()))
        assert len(tensors) >= 4 and max(tensors) <= 4  # the input, two of an op, the copy
        assert most() <= 2

    def test_the_plain_program_is_that_without_shortcuts(self, mlp):
        x = np.ones((1, 32, 1, 5), np.float16)
        program = MLProgram(mlp)
        assert program.plain().precision == "fp16" and program.plain("fp32").precision == "fp32"
        for precision in ("fp16", "fp32"):
            expected = MLProgram(mlp, precision=precision, optimize=False).predict({"x": x})["y"]
            np.testing.assert_array_equal(program.plain(precision).predict({"x": x})["y"], expected)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, "missing: x"),
            ({"x": np.ones((1, 32, 1, 5)), "z": np.ones(1)}, "unknown: z"),
            ({"x": np.ones((1, 32, 1, 4))}, r"must be fp16\(1, 32, 1, 5\)"),
            ({"x": np.full((1, 32, 1, 5), "a")}, "not <U1"),
        ],
    )
    def test_wrong_inputs(self, mlp, inputs, message):
        with pytest.raises(InvalidInput, match=message):
            MLProgram(mlp).predict(inputs)

    def test_wrong_choices(self, mlp):
        with pytest.raises(InvalidInput, match="precision must be"):
            MLProgram(mlp, precision="int8")
        with pytest.raises(InvalidInput, match="no function 'decode'; it has: main"):
            MLProgram(mlp, "decode")

    def test_opening_leaves_the_package_as_it_is(self, mlp):
        before = {f: f.read_bytes() for f in mlp.rglob("*") if f.is_file()}
        MLProgram(mlp).predict({"x": np.ones((1, 32, 1, 5))})
        assert before == {f: f.read_bytes() for f in mlp.rglob("*") if f.is_file()}


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

    def test_what_was_read_before_a_write_does_not_change_with_it(self, tmp_path):
        @mb.program(
            input_specs=[
                mb.TensorSpec((1, 4), dtype=types.fp16),
                mb.StateTensorSpec((3, 4), dtype=types.fp16),
            ],
            opset_version=ct.target.iOS18,
        )
        def program(row, memory):
            before = mb.read_state(input=memory)
            after = mb.slice_update(x=before, update=row, begin=[0, 0], end=[1, 4])
            mb.coreml_update_state(state=memory, value=after)
            return mb.add(x=before, y=np.float16(0), name="old")

        path = save(program, tmp_path / "p.mlpackage")
        for optimize in (True, False):
            running = MLProgram(path, optimize=optimize)
            state = running.make_state()
            assert running.predict({"row": np.ones((1, 4))}, state)["old"].sum() == 0
            assert running.predict({"row": np.ones((1, 4))}, state)["old"].sum() == 4


class TestControlFlow:
    def test_cond_and_while(self, tmp_path):
        @mb.program(
            input_specs=[mb.TensorSpec((2,), dtype=types.fp32)], opset_version=ct.target.iOS18
        )
        def program(x):
            big = mb.greater(x=mb.reduce_sum(x=x, axes=[0], keep_dims=False), y=np.float32(10))
            start = mb.cond(pred=big, _true_fn=lambda: mb.mul(x=x, y=2.0), _false_fn=lambda: x)
            result = mb.while_loop(
                _cond=lambda v: mb.less(
                    x=mb.reduce_sum(x=v, axes=[0], keep_dims=False), y=np.float32(100)
                ),
                _body=lambda v: mb.add(x=mb.mul(x=v, y=3.0), y=x),
                loop_vars=(start,),
            )
            return mb.identity(x=result, name="y")

        running = MLProgram(save(program, tmp_path / "p.mlpackage"), precision="fp32")

        def expected(x):
            v = x * 2 if x.sum() > 10 else x
            while v.sum() < 100:
                v = v * 3 + x
            return v

        for x in (np.array([1.0, 2.0]), np.array([20.0, 3.0]), np.array([200.0, 3.0])):
            x = x.astype(np.float32)
            np.testing.assert_allclose(running.predict({"x": x})["y"], expected(x))


class TestBadPackages:
    @pytest.fixture
    def copy(self, mlp, tmp_path):
        return shutil.copytree(mlp, tmp_path / "copy.mlpackage")

    def model(self, package):
        return package / "Data" / "com.apple.CoreML" / "model.mlmodel"

    def edit(self, package, change):
        """Change the model's protobuf."""
        from coremltools.proto import Model_pb2

        model = Model_pb2.Model()
        model.ParseFromString(self.model(package).read_bytes())
        change(model)
        self.model(package).write_bytes(model.SerializeToString())

    def block(self, model):
        return model.mlProgram.functions["main"].block_specializations["CoreML8"]

    def test_an_op_that_the_executor_lacks(self, copy):
        def change(model):
            operation = next(o for o in self.block(model).operations if o.type == "silu")
            operation.type = "silo"

        self.edit(copy, change)
        with pytest.raises(UnsupportedOp, match=r"op 'silo'.*around it: conv silo conv.*silu"):
            MLProgram(copy).predict({"x": np.ones((1, 32, 1, 5))})
        assert "silo" not in OPS

    def test_a_value_that_nobody_made(self, copy):
        def change(model):
            silu = next(o for o in self.block(model).operations if o.type == "silu")
            silu.inputs["x"].arguments[0].name = "ghost"

        self.edit(copy, change)
        with pytest.raises(InvalidPackage, match="'ghost' is used before any op made it"):
            MLProgram(copy).predict({"x": np.ones((1, 32, 1, 5))})

    def test_another_kind_of_model(self, copy):
        self.edit(copy, lambda model: model.neuralNetwork.SetInParent())
        with pytest.raises(InvalidPackage, match="holds a neuralNetwork, not an ML Program"):
            Package(copy)

    def test_a_damaged_protobuf(self, copy):
        self.model(copy).write_bytes(b"\xff" * 100)
        with pytest.raises(InvalidPackage, match="is damaged"):
            Package(copy)

    def test_weights_outside_the_file(self, copy):
        weights = copy / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
        weights.write_bytes(weights.read_bytes()[:200])
        with pytest.raises(InvalidPackage, match="weight.bin"):
            MLProgram(copy).predict({"x": np.ones((1, 32, 1, 5))})

    def test_a_path_that_leads_outside(self, copy):
        manifest = json.loads((copy / "Manifest.json").read_text())
        root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
        root["path"] = "../../../../etc/passwd"
        (copy / "Manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidPackage, match="is not in the package"):
            Package(copy)

    def test_no_package(self, tmp_path):
        with pytest.raises(InvalidPackage, match="no such package"):
            Package(tmp_path / "nothing.mlpackage")
        (tmp_path / "model.onnx").write_bytes(b"\x08\x08")  # protobuf reads it as an empty Model
        for path in (tmp_path, tmp_path / "model.onnx"):
            with pytest.raises(InvalidPackage, match=r"not a \.mlpackage"):
                Package(path)


class TestPipe:
    """`python -m mlprogram.pipe`, as a host in another language talks to it."""

    @pytest.fixture
    def ask(self):
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

    def test_calls_and_states(self, counter, ask):
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

    def test_what_cannot_be_done_is_a_sentence(self, counter, ask, tmp_path):
        missing = {"load": str(tmp_path / "none.mlpackage"), "function": ""}
        assert "none.mlpackage" in ask(missing)[0]["error"]
        assert "no function 'other'" in ask({"load": str(counter), "function": "other"})[0]["error"]
        assert "no request that is known" in ask({"what": 1})[0]["error"]
        (name,) = MLProgram(counter).functions
        number = ask({"load": str(counter), "function": name})[0]["function"]
        call = {"call": number, "inputs": ["position"], "outputs": ["twice"]}
        assert "announces 4" in ask(call, np.zeros(3, np.int32))[0]["error"]
        assert ask({"state": number})[0] == {"state": 0}
