"""Operators whose meaning changed with an opset, in graphs of before, against ONNX Runtime."""

from _graphs import Maker, hold_to_onnxruntime
import numpy as np
import pytest

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("op", "opset", "mode", "scale"),
    [
        ("Upsample", 9, "linear", 2),
        ("Upsample", 9, "nearest", 1.6),
        ("Resize", 10, "linear", 2.7),
        ("Resize", 10, "nearest", 1.6),
        ("Resize", 10, "nearest", 0.7),
    ],
)
def test_rows_come_from_where_they_did(tmp_path, op, opset, mode, scale):
    make = Maker()
    scales = make.constant(np.float32([1, 1, scale, scale]))
    y = make(op, make.input("x", [1, 2, 7, 5]), scales, mode=mode)
    x = RANDOM.standard_normal((1, 2, 7, 5), np.float32)
    hold_to_onnxruntime(make.save(tmp_path / "model.onnx", [y], opset), {"x": x})


@pytest.mark.parametrize("axis", [{}, {"axis": 2}, {"axis": -2}, {"axis": -1}])
def test_hardmax_is_over_all_axes_from_its_own_on(tmp_path, axis):
    make = Maker()
    y = make("Hardmax", make.input("x", [2, 3, 4, 5]), **axis)
    x = RANDOM.standard_normal((2, 3, 4, 5), np.float32)
    hold_to_onnxruntime(make.save(tmp_path / "model.onnx", [y], 11), {"x": x})
