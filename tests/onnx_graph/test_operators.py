"""Operators in the forms that ONNX's own node tests leave out, against ONNX Runtime."""

from _graphs import Maker, hold_to_onnxruntime
import numpy as np
import pytest

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
