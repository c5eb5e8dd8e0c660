"""What graphs of others asked of the converter (`field.py`), each in a few nodes."""

from _graphs import Maker, hold_to_onnxruntime
import numpy as np
import pytest

RANDOM = np.random.default_rng(4)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_quantised_convolution_has_a_bias(tmp_path, steps):
    """In steps of both scales, whether one stands for all channels or each has its own."""
    make = Maker()
    zero = make.constant(np.int8(3))
    scale = make.constant(np.float32(0.05))
    x = make("QuantizeLinear", make.input("x", [2, 2, 6, 5]), scale, zero)
    weights = make.constant(RANDOM.integers(-100, 100, (3, 2, 3, 3)).astype(np.int8))
    scales = make.constant(
        np.float32([0.01, 0.02, 0.03][:steps]) if steps > 1 else np.float32(0.01)
    )
    zeros = make.constant(np.zeros(steps, np.int8) if steps > 1 else np.int8(0))
    bias = make.constant(np.int32([-900, 40, 2000]))
    given = (x, scale, zero, weights, scales, zeros, make.constant(np.float32(0.1)), zero, bias)
    y = make("QLinearConv", *given, pads=[1, 1, 1, 1])
    path = make.save(tmp_path / "model.onnx", [y])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 2, 6, 5), np.float32)}, 0.02)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, bool])
def test_whole_numbers_and_truth_are_padded(tmp_path, dtype):
    make = Maker()
    pads, fill = make.constant(np.int64([0, 1, 2, -1])), make.constant(np.array(1, dtype))
    path = make.save(
        tmp_path / "model.onnx", [make("Pad", make.input("x", [3, 4], dtype), pads, fill)]
    )
    hold_to_onnxruntime(path, {"x": RANDOM.integers(0, 99, (3, 4)).astype(dtype)})
