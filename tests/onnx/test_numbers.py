"""Sizes that there are not, numbers beyond their range, and where any number is right.

That each operator refuses numbers beyond int32 is in test_nodes.py, by ONNX's own cases.
"""

from _graphs import Maker, hold_to_onnxruntime
from mlprogram.errors import MLProgramError, UnsupportedModel, UnsupportedOp
from mlprogram.onnx.graph import convert_graph
import numpy as np
import pytest

LEAST, MOST = -(2**63), 2**63 - 1
X = np.arange(12, dtype=np.float32).reshape(3, 4)
IMAGE = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
LONG = np.zeros((1, 1, 2**12, 1), np.float32)


def one(path, op: str, x: np.ndarray, *constants, count: int = 1, opset: int = 17, **attributes):
    """A graph of one operator of x and of constants (None: left out)."""
    make = Maker()
    more = ["" if c is None else make.constant(c) for c in constants]
    made = make(op, make.input("x", x.shape, x.dtype), *more, count=count, **attributes)
    return make.save(path / "m.onnx", [made] if count == 1 else made, opset)


#: Numbers within int32 that ask for what is not there, or for more than there can be.
REFUSED = {
    "pad": ("Pad", X, [np.int64([2**30, 0, 2**30, 0])], {}, "2,147,483,651 x 4"),
    "pad of bits": ("Pad", X > 0, [np.int64([2**28, 0, 0, 0]), np.array(True)], {}, "1.07e+09"),
    "pad by reflection": ("Pad", X, [np.int64([2**28, 0, 0, 0])], {"mode": "reflect"}, "2.68e+08"),
    "pad by less than nothing": ("Pad", X, [np.int64([0, 3, 0, -7])], {}, "a cut of 3 and -7"),
    "tile": ("Tile", X, [np.int64([2**31 - 1, 1])], {}, "a tensor of 6,442,450,941 x 4"),
    "expand": ("Expand", X, [np.int64([2**30, 3, 4])], {}, "a tensor of 1,073,741,824 x 3 x 4"),
    "one hot": (
        "OneHot", np.int64([1, 2]), [np.int64([2**31 - 1]), np.float32([0, 1])], {}, "2 x 2,147"
    ),
    "resize": ("Resize", IMAGE, [None, np.float32([1, 1, 1e9, 1e9])], {}, "8e+09 numbers"),
    "resize without end": ("Resize", IMAGE, [None, np.float32([1, 1, np.inf, 1])], {}, "infinity"),
    "resize by a matrix": (
        "Resize", LONG, [None, None, np.int64([1, 1, 2**16, 1])], {"mode": "cubic"}, "numbers"
    ),
    "window": ("MaxPool", IMAGE, [], {"kernel_shape": [2**31 - 1, 1]}, "2,147,483,647 of 8"),
    "window of slices": (
        "MaxPool", IMAGE, [],
        {"kernel_shape": [2**20, 1], "dilations": [3, 1], "pads": [2**21, 0, 2**21, 0]},
        "1048576 x 1, each a slice",
    ),
    "window of nothing": ("AveragePool", IMAGE, [], {"kernel_shape": [0, -7]}, "a window of 0"),
    "window that stands": ("Conv", IMAGE, [IMAGE], {"strides": [1, 0]}, "moved by 0"),
    "window of others": ("Conv", IMAGE, [IMAGE], {"kernel_shape": [7, 7]}, "[7, 7] with weights"),
    "window turned": ("ConvTranspose", IMAGE, [IMAGE], {"strides": [2**31 - 1, 1]}, "by 2147"),
    "transform": ("DFT", IMAGE, [np.int64(2**30)], {"axis": 2}, "8.59e+09 numbers"),
    "frames": ("STFT", X[:1], [np.int64(1), None, np.int64(2**30)], {}, "frames of 1073741824"),
    "parts": ("Split", X, [np.int64([2**31 - 1, 5])], {"count": 2}, "2 parts of an axis of 3"),
    "most of few": ("TopK", X, [np.int64([2**31 - 1])], {"count": 2}, "TopK"),
    "units": (
        "RNN", X[None], [np.zeros((1, 2, 4), np.float32), np.zeros((1, 2, 2), np.float32)],
        {"hidden_size": 2**31 - 1}, "hidden_size",
    ),
    "index": ("Gather", X, [np.int64(7)], {}, "index 7 of an axis of 3"),
    "index from the end": ("Gather", X, [np.int64([0, -5])], {"axis": 1}, "index -5 of"),
    "index of elements": ("GatherElements", X, [np.int64([[3]])], {}, "index 3 of an axis of 3"),
    "index of rows": ("GatherND", X, [np.int64([[0, 4]])], {}, "index 4 of"),
    "index of what is put": (
        "ScatterElements", X, [np.int64([[3]]), np.float32([[1]])], {}, "index 3 of an axis of 3"
    ),
    "rows put": ("ScatterND", X, [np.int64([[-4]]), X[:1]], {}, "index -4 of"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_before_it_is_made(tmp_path, name):
    """As ONNX Runtime refuses it, or for want of memory; and without a wait."""
    op, x, constants, attributes, said = REFUSED[name]
    with pytest.raises(UnsupportedOp) as refused:
        convert_graph(one(tmp_path, op, x, *constants, **attributes), tmp_path / "m.mlpackage")
    assert op in str(refused.value) and said in str(refused.value), str(refused.value)


AXES = {
    "Concat": ([X], {}), "CumSum": ([], {}), "Flatten": ([], {}), "Gather": ([np.int64(0)], {}),
    "Hardmax": ([], {}), "ReduceSum": ([], {}), "Softmax": ([], {}), "Split": ([], {}),
    "Squeeze": ([], {}), "TopK": ([np.int64([1])], {"count": 2}), "Unsqueeze": ([], {}),
    "ArgMax": ([], {"select_last_index": 1}), "LayerNormalization": ([X[0]], {}),
}  # fmt: skip


@pytest.mark.parametrize("axis", [-4, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("op", AXES)
def test_an_axis_that_is_not_there_is_none_of_the_others(tmp_path, op, axis):
    constants, attributes = AXES[op]
    if op in ("CumSum", "ReduceSum", "Squeeze", "Unsqueeze"):
        constants = [np.int64(axis) if op == "CumSum" else np.int64([axis])]
    else:
        attributes = attributes | {"axis": axis}
    path = one(tmp_path, op, X, *constants, **attributes)
    with pytest.raises(UnsupportedOp, match=op):
        convert_graph(path, tmp_path / "m.mlpackage")


@pytest.mark.parametrize(
    "bounds",
    [
        (0, MOST, 1), (1, 2**31 - 1, 2), (-1, LEAST, -1), (MOST, LEAST, -2), (LEAST, MOST, 3),
        (0, 4, MOST), (3, LEAST, LEAST), (2**31, 2**33, 1), (0, -(2**31) - 1, 1), (2, MOST, 2**31),
    ],
)  # fmt: skip
def test_a_slice_may_end_anywhere(tmp_path, bounds):
    """What is left of it is what ONNX Runtime leaves; nothing, if that is nothing."""
    start, end, step = (np.int64([bound]) for bound in bounds)
    path = one(tmp_path, "Slice", X, start, end, np.int64([1]), step)
    if X[:, slice(*bounds)].size:
        hold_to_onnxruntime(path, {"x": X}, 0)
    else:
        with pytest.raises(UnsupportedModel, match=r"shape \(3, 0\)"):
            convert_graph(path, tmp_path / "m.mlpackage")


def test_numbers_of_an_older_opset_are_not_cut_to_the_converter_s(tmp_path):
    """onnx's conversion of Scatter takes an axis of 2^33 for 0; a slice ends at INT64_MAX."""
    path = one(tmp_path, "Scatter", X, np.int64([[1]]), X[:1, :1], opset=10, axis=2**33)
    with pytest.raises(UnsupportedOp, match=r"Scatter.*beyond int32: 8,589,934,592"):
        convert_graph(path, tmp_path / "m.mlpackage")
    path = one(tmp_path, "Slice", X, opset=9, starts=[1], ends=[MOST], axes=[0])
    hold_to_onnxruntime(path, {"x": X}, 0)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Tile", [X, np.int64([2**40, 1])], {}),
        ("Range", [np.int64(0), np.int64(MOST), np.int64(1)], {}),
        ("Add", [np.zeros((2**16, 1), np.float32), np.zeros(2**16, np.float32)], {}),
        ("Einsum", [np.zeros(2**16, np.float32)] * 2, {"equation": "a,b->ab"}),
        ("GatherND", [X, np.int64([[0]])], {"batch_dims": -7}),  # onnx's inference dies of it
        ("GatherND", [LONG[0, 0].T, np.zeros((2**16, 1), np.int64)], {}),
        ("MaxPool", [IMAGE], {"kernel_shape": [2**31 - 1, 1], "pads": [2**30, 0, 2**30, 0]}),
        ("Resize", [IMAGE, None, np.float32([1, 1, 1e6, 1e6])], {}),
        ("DequantizeLinear", [np.int8(X), X[0], None], {"axis": 2**31 - 1}),
    ],
)
def test_constants_do_not_grow_beyond_memory_or_time(tmp_path, op, operands, attributes):
    """Of constants alone, as they are folded: refused, or left to the program."""
    make = Maker()
    names = ["" if array is None else make.constant(array) for array in operands]
    make(op, *names, **attributes)
    path = make.save(tmp_path / "m.onnx", [make("Neg", make.input("x", [2]))])
    with pytest.raises(MLProgramError, match=op):
        convert_graph(path, tmp_path / "m.mlpackage")


def test_an_input_has_no_more_numbers_than_there_are_places(tmp_path):
    path = one(tmp_path, "Relu", X)
    make = Maker()
    path = make.save(tmp_path / "m.onnx", [make("Relu", make.input("x", ["a", "b"]))])
    for shape in ((2**31, 1), (2**16, 2**15), (2**62, 2**62)):
        with pytest.raises(UnsupportedModel, match="up to 2,147,483,647 numbers"):
            convert_graph(path, tmp_path / "m.mlpackage", shapes={"x": shape})
