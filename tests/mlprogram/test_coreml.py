"""The executor in Core ML's place: coremltools' own calls, on this machine."""

from functools import cache
import os
import subprocess
import sys
from time import perf_counter_ns

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
import mlprogram.coreml
from mlprogram.machine import CAN_PREDICT
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(CAN_PREDICT, reason="this machine has Core ML itself")
X = np.array([[1.0, -2.0, 3.0]], np.float32)
SAVED = dict(convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18)


@mb.program(input_specs=[mb.TensorSpec((1, 3))], opset_version=ct.target.iOS18)
def doubled(x):
    return mb.add(x=x, y=x, name="y")


@mb.program(
    input_specs=[mb.TensorSpec((3,), types.fp16), mb.StateTensorSpec((3,), types.fp16)],
    opset_version=ct.target.iOS18,
)
def summed(x, total):
    y = mb.add(x=mb.read_state(input=total), y=x, name="y")
    mb.coreml_update_state(state=total, value=y)
    return y


@pytest.fixture
def enabled():
    with mlprogram.coreml.enable():
        yield


@cache
def convert(program):
    return ct.convert(program, **SAVED)


def test_a_converted_model_predicts_what_the_executor_says(enabled, tmp_path):
    model = convert(doubled)
    model.save(str(tmp_path / "doubled.mlpackage"))
    wanted = MLProgram(tmp_path / "doubled.mlpackage").predict({"x": X})["y"]
    np.testing.assert_array_equal(model.predict({"x": X})["y"], wanted)
    batch = model.predict([{"x": X}, {"x": X + 1}])
    np.testing.assert_array_equal(batch[1]["y"], wanted + 2)


def test_states_are_kept_read_and_written(enabled):
    model = convert(summed)
    state, x = model.make_state(), np.ones(3, np.float16)
    model.predict({"x": x}, state)
    assert model.predict({"x": x}, state)["y"].tolist() == [2, 2, 2]
    state.write_state("total", np.full(3, 5, np.float32))
    assert model.predict({"x": x}, state)["y"].tolist() == [6, 6, 6]
    assert state.read_state("total").tolist() == [6, 6, 6]
    with pytest.raises(RuntimeError, match="no state 'sum'"):
        state.read_state("sum")


@pytest.mark.parametrize(
    "value",
    [
        *(np.ones((1, 3), kind) for kind in ("i8", "u1", "i2", "u2", "?")),
        *([[1, 2, 3]], torch.ones((1, 3), dtype=torch.int64), 3.0, np.broadcast_to(X, (1, 3))),
    ],
    ids=repr,
)
def test_values_that_the_binding_does_not_convert_are_refused_as_on_a_mac(enabled, value):
    """coremltools issues 194, 1498 and 1689 have the error's words."""
    model = convert(doubled)
    for data in ({"x": value}, [{"x": X}, {"x": value}]):
        with pytest.raises(RuntimeError, match="^value type not convertible: 'x'"):
            model.predict(data)
    compiled = ct.models.CompiledMLModel(model.get_compiled_model_path())
    if not isinstance(value, float):  # which need not be an array there
        with pytest.raises(RuntimeError, match="^value type not convertible: 'x'"):
            compiled.predict({"x": value})


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int32, np.int8, list])
def test_values_that_the_binding_converts(enabled, kind):
    value = [[1.0, 2.0, 3.0]] if kind is list else np.array([[1, 2, 3]], kind)
    assert convert(doubled).predict({"x": value})["y"].tolist() == [[2, 4, 6]]


def test_half_precision_comes_out_as_float32_and_is_not_written_to_a_state(enabled, tmp_path):
    model = convert(summed)
    state, x = model.make_state(), np.ones(3, np.float16)
    assert model.predict({"x": x}, state)["y"].dtype == np.float32
    assert state.read_state("total").dtype == np.float32
    with pytest.raises(RuntimeError, match="^value type not convertible: 'total'"):
        state.write_state("total", x)
    model.save(str(tmp_path / "summed.mlpackage"))
    own = MLProgram(tmp_path / "summed.mlpackage")
    assert own.predict({"x": x}, own.make_state())["y"].dtype == np.float16


def test_a_compiled_model_is_loaded_by_its_path(enabled, tmp_path):
    model = convert(doubled)
    compiled = ct.models.CompiledMLModel(model.get_compiled_model_path())
    assert compiled.predict({"x": X})["y"].tolist() == [[2, -4, 6]]
    model.save(str(tmp_path / "doubled.mlpackage"))
    path = ct.utils.compile_model(
        str(tmp_path / "doubled.mlpackage"), str(tmp_path / "own.mlmodelc")
    )
    assert ct.models.CompiledMLModel(path).predict({"x": X})["y"].tolist() == [[2, -4, 6]]


def test_durations_are_measured(enabled):
    start = perf_counter_ns()
    model = convert.__wrapped__(doubled)
    assert 0 < model.load_duration_in_nano_seconds < perf_counter_ns() - start
    assert model.last_predict_duration_in_nano_seconds is None
    for data in ({"x": X}, [{"x": X}] * 3):
        start = perf_counter_ns()
        model.predict(data)
        whole = perf_counter_ns() - start
        assert 0 < model.last_predict_duration_in_nano_seconds <= whole


def test_errors_are_those_of_core_ml(enabled, tmp_path):
    model = convert(doubled)
    with pytest.raises(RuntimeError, match="Unable to compute the prediction"):
        model.predict({"x": np.ones((1, 4), np.float32)})
    model.save(str(tmp_path / "broken.mlpackage"))
    weights = next((tmp_path / "broken.mlpackage").rglob("model.mlmodel"))
    weights.write_bytes(weights.read_bytes().replace(b"add", b"odd"))
    broken = ct.models.MLModel(str(tmp_path / "broken.mlpackage"))
    with pytest.raises(RuntimeError, match="'odd'"):
        broken.predict({"x": X})
    with pytest.raises(RuntimeError, match="needs Core ML itself"):
        ct.models.model.MLModelAsset.from_path(str(tmp_path / "own.mlmodelc"))


def test_afterwards_coremltools_is_as_it_was():
    before = ct.models.model._MLModelProxy, ct.utils._is_macos, "coremltools.libcoremlpython"
    with mlprogram.coreml.enable("fp32") as enabled:
        assert ct.utils._is_macos() and before[2] in sys.modules
        model = convert.__wrapped__(doubled)
    assert (ct.models.model._MLModelProxy, ct.utils._is_macos) == before[:2]
    assert before[2] not in sys.modules and not ct.utils._is_macos()
    assert not hasattr(ct, "libcoremlpython")
    assert model.predict({"x": X})["y"].tolist() == [[2, -4, 6]], "made while it was enabled"
    with pytest.raises(Exception, match="Model prediction is only supported"):
        convert.__wrapped__(doubled).predict({"x": X})
    assert enabled is not None


def test_a_suite_written_for_a_mac_runs_unchanged(tmp_path):
    (tmp_path / "test_mac.py").write_text(
        "import coremltools as ct, numpy as np, torch\n"
        "def test_relu():\n"
        "    traced = torch.jit.trace(torch.nn.ReLU(), torch.zeros(1, 3))\n"
        "    model = ct.convert(traced, inputs=[ct.TensorType(shape=(1, 3), name='x')],\n"
        "                       outputs=[ct.TensorType(name='y')])\n"
        "    x = np.array([[1, -2, 3]], np.float32)\n"
        "    assert model.predict({'x': x})['y'].tolist() == [[1, 0, 3]]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path), "-p", "no:cacheprovider"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it begins sooner
    helped = subprocess.run(
        [*command, "-p", "mlprogram"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=alone,
    )
    assert "1 passed" in helped.stdout, helped.stdout
