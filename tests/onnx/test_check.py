"""What `mlprogram convert` says of the package that it made of a graph: right, or what is wrong."""

import os
import subprocess
import sys
import tempfile

from _command import mlprogram
from _graphs import Maker
from mlprogram import MLProgram
from mlprogram.onnx.check import check_graph
from mlprogram.onnx.check.inputs import random_inputs
from mlprogram.onnx.graph import convert_graph
from mlprogram.onnx.graph.source import GraphSource
import numpy as np
import pytest


def scaled(path, factor: float = 1.0):
    """x times a number, and where it is above zero."""
    make = Maker()
    y = make("Mul", make.input("x/0", [2, 3]), make.constant(np.float32(factor)))
    return make.save(path, [y, make("Greater", y, make.constant(np.float32(0)))])


def overflowing(path):
    """300 x squared, and back: a number beyond fp16 on the way."""
    make = Maker()
    y = make("Mul", make.input("x", [2, 3]), make.constant(np.float32(300)))
    y = make("Sqrt", make("Add", make("Mul", y, y), make.constant(np.float32(1))))
    return make.save(path, [y])


def test_the_command_says_what_came_of_each_precision(tmp_path):
    path, package = scaled(tmp_path / "m.onnx", 3), tmp_path / "m.mlpackage"
    done = mlprogram("convert", path, "--out", package)
    assert (done.returncode, done.stdout) == (0, f"{package}\n")
    names, single, half = done.stderr.splitlines()
    assert names.endswith("so these changed: input 'x/0' is 'x_0'")
    assert single.startswith("check in fp32: agrees with ONNX Runtime to 0 % of")
    assert half.startswith("check in fp16: agrees with ONNX Runtime to 0.0")
    assert half.endswith("% allowed), on random inputs, seed 0")
    full = ["--precision", "fp32", "--force"]
    done = mlprogram("convert", path, "--out", package, *full)
    assert "\ncheck in fp32: agrees" in done.stderr and done.stderr.count("\n") == 2
    done = mlprogram("convert", path, "--out", package, "--no-check", "--force")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{package}\n", f"{names}\n")


def test_what_is_wrong_in_half_precision_is_a_warning_that_names_the_op(tmp_path):
    path, package = overflowing(tmp_path / "m.onnx"), tmp_path / "m.mlpackage"
    np.savez(tmp_path / "in.npz", x=np.float32([[1, 2, 3], [-1, 0.5, 0]]))
    done = mlprogram("convert", path, "--out", package, "--inputs", tmp_path / "in.npz")
    assert (done.returncode, done.stdout) == (0, f"{package}\n")
    single, half = done.stderr.splitlines()
    assert single.startswith("check in fp32: agrees") and "on the given inputs" in single
    assert half.startswith("warning: check in fp16: differs from ONNX Runtime: of output 'Sqrt_3_")
    assert "4 of 6 numbers are finite on one side only, on the given inputs; mul 'Mul_1_0" in half
    assert "810,000 at most, beyond fp16's 65,504 (4 of 6 elements)" in half


def test_inputs_that_do_not_fit(tmp_path):
    """A file that is none is told before the work; arrays that do not fit, after it, in a line."""
    path, package = scaled(tmp_path / "m.onnx"), tmp_path / "m.mlpackage"
    done = mlprogram("convert", path, "--out", package, "--inputs", tmp_path / "no.npz")
    assert done.returncode == 2 and "no.npz" in done.stderr and not package.exists()
    np.savez(tmp_path / "in.npz", y=np.zeros(2))
    done = mlprogram("convert", path, "--out", package, "--inputs", tmp_path / "in.npz")
    assert (done.returncode, done.stdout) == (0, f"{package}\n")
    assert "\ncheck not made: no array is given for input 'x/0'" in done.stderr
    wrong = check_graph(path, package, {"x/0": np.zeros((3, 3))})
    assert [v.agrees for v in wrong] == [None] and "(2, 3)" in str(wrong[0])


def test_no_temporary_package_is_left(tmp_path, monkeypatch):
    """coremltools would delete it when the process ends, unless that is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    convert_graph(scaled(tmp_path / "m.onnx"), tmp_path / "m.mlpackage")
    assert not [*(tmp_path / "temporary").iterdir()]


def test_an_output_that_is_named_twice_is_one(tmp_path):
    make = Maker()
    y = make("Relu", make.input("x", [2, 3]))
    path = make.save(tmp_path / "m.onnx", [y, y])
    verdicts = check_graph(path, convert_graph(path, tmp_path / "m.mlpackage", "fp32"))
    assert [verdict.agrees for verdict in verdicts] == [True]


def test_a_package_of_another_graph_differs_in_both(tmp_path):
    package = convert_graph(scaled(tmp_path / "m.onnx"), tmp_path / "m.mlpackage")
    verdicts = check_graph(scaled(tmp_path / "other.onnx", 1.2), package)
    assert [(v.precision, v.agrees) for v in verdicts] == [("fp32", False), ("fp16", False)]
    assert "by 16.7 % of the largest value (output 'Mul_0_0'" in str(verdicts[0])
    opposite = check_graph(scaled(tmp_path / "other.onnx", -1), package)
    assert [v.agrees for v in opposite] == [False, False]


def test_what_the_graph_itself_rounds_is_allowed_as_much_as_half_precision(tmp_path):
    make = Maker()
    x = make("Cast", make.input("x", [2, 64], np.float16), to=1)
    scale, zero = make.constant(np.float32(0.02)), make.constant(np.uint8(128))
    q = make("DequantizeLinear", make("QuantizeLinear", x, scale, zero), scale, zero)
    path = make.save(tmp_path / "m.onnx", [make("MatMul", q, make.weight(64, 64))])
    verdicts = check_graph(path, convert_graph(path, tmp_path / "m.mlpackage", "fp32"))
    assert [(v.agrees, "5 % allowed" in v.text) for v in verdicts] == [(True, True)]


def test_whole_numbers_differ_by_how_many_do(tmp_path):
    def whole(path, number: int):
        make = Maker()
        y = make("Mod", make.input("x", [1, 4], np.int64), make.constant(np.int64(number)))
        return make.save(path, [y])

    package = convert_graph(whole(tmp_path / "m.onnx", 3), tmp_path / "m.mlpackage")
    given = {"x": np.int64([[1, 2, 3, 4]])}
    (verdict,) = check_graph(whole(tmp_path / "other.onnx", 4), package, given)
    assert verdict.agrees is False and "by 50 % of the numbers" in str(verdict)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, bool])
def test_a_number_is_an_array_to_onnxruntime(tmp_path, dtype):
    """An input of no axes, as the rate of a voice detector, random or given."""
    make = Maker()
    rate = make("Cast", make.input("rate", [], dtype), to=1)
    path = make.save(tmp_path / "m.onnx", [make("Mul", make.input("x", [2, 8]), rate)])
    package = convert_graph(path, tmp_path / "m.mlpackage", "fp32")
    given = {"rate": np.ones((1,)), "x": np.ones((2, 8))}
    for inputs in (None, given, given | {"rate": np.float64(1)}):
        assert [verdict.agrees for verdict in check_graph(path, package, inputs)] == [True]


@pytest.mark.parametrize("make", [scaled, overflowing])
def test_without_onnxruntime_it_is_said_whether_outputs_are_finite(tmp_path, monkeypatch, make):
    path = make(tmp_path / "m.onnx")
    package = convert_graph(path, tmp_path / "m.mlpackage")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    given = {GraphSource(path).graph.input[0].name: np.float32([[1, 2, 3], [4, 5, 6]])}
    single, half = check_graph(path, package, given)
    assert single.agrees is half.agrees is None
    assert str(single).startswith("in fp32: all outputs are finite on the given inputs; not compar")
    assert "onnxruntime is not installed" in str(half)
    lost = make is overflowing
    assert ("6 of 6 numbers NaN or infinite" in str(half)) is lost
    assert ("beyond fp16's 65,504" in str(half)) is lost


def test_onnxruntime_leaves_nothing_in_the_user_s_folders(tmp_path):
    """Its telemetry has an identifier in the cache and a file beside temporary ones."""
    graph, home = scaled(tmp_path / "m.onnx"), tmp_path / "home"
    home.mkdir()
    names = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOME": str(home), "TMPDIR": str(home)}
    code = "import sys; from mlprogram.onnx.runtime import open_session; open_session(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(graph)], env=environment, check=True)
    assert not list(home.rglob("*"))


def test_nothing_that_fails_is_raised(tmp_path):
    path = scaled(tmp_path / "m.onnx")
    package = convert_graph(path, tmp_path / "m.mlpackage")
    for graph, made in ((tmp_path / "gone.onnx", package), (path, tmp_path / "gone.mlpackage")):
        (verdict,) = check_graph(graph, made)
        assert verdict.agrees is None and "not made" in str(verdict) and "gone" in str(verdict)
    (package / "Data" / "com.apple.CoreML" / "model.mlmodel").write_bytes(b"nothing")
    (verdict,) = check_graph(path, package)
    assert "not made" in str(verdict) and "\n" not in str(verdict)


def test_inputs_are_what_a_model_may_be_given(tmp_path):
    make, size = Maker(), [2, 8]
    ids = make.input("input_ids", size, np.int64)
    places = make.input("position_ids", [1, 8], np.int32)
    mask = make.input("attention_mask", size, np.int64)
    shown, number = make.input("key_mask", [8], bool), make.input("number", [], np.int64)
    image, bytes_ = make.input("pixel_values", [1, 3, 4, 4]), make.input("raw", [1, 4, 4], np.uint8)
    table = make("Identity", make.weight(5, 4))
    outputs = [
        make("Gather", make.weight(900, 4), make("Unsqueeze", ids, make.constant(np.int64([0])))),
        make("Gather", table, make("Cast", ids, to=6)),
        make("Gather", make.weight(6, 4), places),
        *(make("Identity", x) for x in (mask, shown, number, image, bytes_)),
    ]
    path = make.save(tmp_path / "m.onnx", outputs)
    package = convert_graph(path, tmp_path / "m.mlpackage")
    found = random_inputs(GraphSource(path).graph, MLProgram(package), 0)
    assert [(x.dtype, x.shape) for x in found.values()] == [
        (np.int64, (2, 8)), (np.int32, (1, 8)), (np.int64, (2, 8)), (bool, (8,)), (np.int64, ()),
        (np.float32, (1, 3, 4, 4)), (np.uint8, (1, 4, 4)),
    ]  # fmt: skip
    assert found["input_ids"].max() < 5 and len(np.unique(found["input_ids"])) > 2
    assert list(found["position_ids"][0]) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert list(found["attention_mask"][1]) == [1] * 6 + [0] * 2
    assert list(found["key_mask"]) == [True] * 6 + [False] * 2
    assert found["pixel_values"].min() >= 0 and found["pixel_values"].max() < 1
    assert found["raw"].max() > 100
    assert [v.agrees for v in check_graph(path, package)] == [True, True]
