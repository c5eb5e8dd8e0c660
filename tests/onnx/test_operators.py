"""Operators in the forms that ONNX's own node tests leave out, against ONNX Runtime."""


from _graphs import Maker, hold_to_onnxruntime
from mlprogram import MLProgram
from mlprogram.onnx.graph import convert_graph
import numpy as np
from onnx import TensorProto, helper
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


# --- operators whose meaning changed with an opset, in graphs of before


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


# --- ops that Core ML computes otherwise than their descriptions say


@pytest.fixture(params=[None, "documented"], ids=["as Core ML", "as described"])
def semantics(request):
    """`mod` and `pow` as Core ML computes them, and as coremltools describes and folds them. What
    is converted must not depend on it."""
    return request.param


SIGNED = [[-7, 7, -7, 7, 6, -6, 0, 1], [2, -2, -2, 2, 3, -3, 5, -(2**31) + 1]]


@pytest.mark.parametrize("known", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_remainders_of_either_sign(tmp_path, semantics, dtype, known):
    make = Maker()
    x, divisor = np.array(SIGNED, dtype) if dtype != np.float32 else np.float32(SIGNED) / 4
    given = {"x": x} if known else {"x": x, "y": divisor}
    names = [make.input(name, [8], dtype) for name in given]
    names += [make.constant(divisor)] * known
    kinds = [1] if dtype == np.float32 else [0, 1]
    path = make.save(tmp_path / "m.onnx", [make("Mod", *names, fmod=fmod) for fmod in kinds])
    hold_to_onnxruntime(path, given, 0, semantics=semantics)


def test_floored_remainders_of_real_numbers(tmp_path, semantics):
    """ONNX has them from opset 28 on, and ONNX Runtime not yet; infinite divisors are its own."""
    x = np.float32([-7, 7, -7, 7, -3, 3, -1, 1, 0, np.inf, 1])
    y = np.float32([2, -2, -2, 2, np.inf, np.inf, -np.inf, -np.inf, -2, 2, 0])
    make = Maker()
    path = make.save(tmp_path / "m.onnx", [make("Mod", make.input("x", [11]), make.constant(y))])
    package = convert_graph(path, tmp_path / "m.mlpackage", "fp32")
    (found,) = MLProgram(package, semantics=semantics).predict({"x": x}).values()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, np.mod(x, y))


def test_a_place_in_a_ring_buffer(tmp_path, semantics):
    make = Maker()
    before = make("Sub", make.input("x", [3], np.int64), make.constant(np.int64(1)))
    place = make("Mod", before, make.constant(np.int64(3)))
    row = make("Gather", make.constant(np.float32([[1, 2], [3, 4], [5, 6]])), place)
    path = make.save(tmp_path / "m.onnx", [place, row])
    hold_to_onnxruntime(path, {"x": np.arange(3)}, 0, "fp16", semantics=semantics)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_narrow_integers_wrap_around(tmp_path, semantics, dtype):
    known = np.iinfo(dtype)
    ends = np.array([known.min, known.max, known.max // 2, 1, 0, known.max], dtype)
    make = Maker()
    x = make("Cast", make.input("x", [6], np.int32), to=helper.np_dtype_to_tensor_dtype(ends.dtype))
    others = make.constant(ends[::-1].copy())
    results = [make(op, x, others) for op in ("Add", "Sub", "Mul")]
    wide = [make("Cast", y, to=TensorProto.INT32) for y in results]
    path = make.save(tmp_path / "m.onnx", wide)
    given = {"x": np.int32([-1, 2**16 + 3, 200, -300, 5, known.min])}
    hold_to_onnxruntime(path, given, 0, semantics=semantics)


BASES = {
    "a number": np.float32(2), "of one axis": np.float32([2]), "a row": np.float32([2] * 4),
    "a column": np.float32([[2]] * 3), "mixed": np.float32([2, 3, 0.5, 2]),
    "nearly two": np.float32(2.0004), "whole": np.int64(2), "a whole row": np.int64([2] * 4),
}  # fmt: skip


@pytest.mark.parametrize("base", BASES)
def test_powers_of_a_constant(tmp_path, semantics, base):
    make = Maker()
    whole = BASES[base].dtype == np.int64
    y = make.input("y", [4], np.int64 if whole else np.float32)
    path = make.save(tmp_path / "m.onnx", [make("Pow", make.constant(BASES[base]), y)])
    exponents = np.int64([0, 1, 3, 20]) if whole else np.float32([-2, 0, 1.5, 5])
    hold_to_onnxruntime(path, {"y": exponents}, 0 if whole else 2e-3, "fp16", semantics=semantics)
