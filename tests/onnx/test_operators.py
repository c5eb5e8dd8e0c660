"""Operators in the forms that ONNX's own node tests leave out, against ONNX Runtime."""

from _graphs import Maker, hold_to_onnxruntime
from ane_book.onnx.graph import convert_graph
from mlprogram import MLProgram
import numpy as np
import pytest
import torch

RANDOM = np.random.default_rng(2)


@pytest.mark.parametrize("op", ["GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_truth_is_gathered_and_scattered(tmp_path, op):
    """As in a mask of attention that is made with advanced indices."""
    make = Maker()
    x = make.input("x", [3, 4], bool)
    places = [[0, 3], [-1, 2]] if op.endswith("ND") else [[0, -1], [1, 2], [2, 0]]
    indices = make.constant(np.int64(places))
    values = RANDOM.random(2 if op.endswith("ND") else (3, 2)) < 0.5
    more = [make.constant(values)] if op.startswith("Scatter") else []
    attributes = {} if op.endswith("ND") else {"axis": 1}
    path = make.save(tmp_path / "model.onnx", [make(op, x, indices, *more, **attributes)])
    hold_to_onnxruntime(path, {"x": RANDOM.random((3, 4)) < 0.5})


POOLS = {
    "MaxPool": {"ceil_mode": 1},
    "AveragePool": {"count_include_pad": 1},
    "LpPool": {"p": 3},
}


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dilated_pools(tmp_path, op, axes):
    make = Maker()
    window = {"kernel_shape": [3, 2, 4][:axes], "dilations": [2, 3, 1][:axes]}
    window |= {"strides": [2, 1, 2][:axes], "pads": [1, 0, 2][:axes] + [1, 1, 0][:axes]}
    sizes = [2, 3, *[11, 9, 8][:axes]]
    y = make(op, make.input("x", sizes), **window, **POOLS[op])
    path = make.save(tmp_path / "model.onnx", [y], opset=19)
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal(sizes, np.float32)})


def test_a_dilated_pool_takes_as_many_slices_as_its_window_has_rows_and_columns(tmp_path):
    make = Maker()
    window = {"kernel_shape": [9, 7], "dilations": [2, 2]}
    path = make.save(
        tmp_path / "m.onnx", [make("MaxPool", make.input("x", [1, 1, 20, 20]), **window)]
    )
    program = hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((1, 1, 20, 20), np.float32)})
    slices = [op for op in program.operations if op.type == "slice_by_index"]
    assert len(slices) == 9 + 7


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (1, 3, 4, 3), (1, 3, 2, 2, 3)])
@pytest.mark.parametrize("opset", [6, 9])
def test_slopes_of_channels(tmp_path, opset, shape):
    """Before opset 7 a slope was one channel's; ONNX Runtime no longer has that, PyTorch does."""
    make = Maker()
    slopes = np.float32([0.1, -0.2, 0.3])
    spread = slopes.reshape(3, *[1] * (len(shape) - 2))
    x = make("Tanh", make.input("x", shape))
    y = make("PRelu", x, make.constant(slopes if opset == 6 else spread))
    path = make.save(tmp_path / "model.onnx", [y], opset)
    given = RANDOM.standard_normal(shape, np.float32)
    package = convert_graph(path, tmp_path / "made.mlpackage", "fp32")
    (got,) = MLProgram(package, precision="fp32").predict({"x": given}).values()
    want = torch.nn.functional.prelu(torch.from_numpy(given).tanh(), torch.from_numpy(slopes))
    assert np.abs(got - want.numpy()).max() < 1e-6
