"""Operators by ONNX's own definitions, loops by their steps, and samples of regions: what others
bring, against ONNX Runtime."""

from _graphs import Maker, helper, hold_to_onnxruntime
from mlprogram.errors import UnsupportedOp
from mlprogram.onnx.graph import convert_graph
from mlprogram.onnx.graph.control import MOST
from mlprogram.onnx.graph.translate import NeedsConstant
import numpy as np
import pytest

RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def info(name: str, kind: int = 1, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


# --- definitions


def norm(make: Maker) -> str:
    return make("RMSNormalization", make.input("x", [2, 8]), make.weight(8), axis=-1)


def rotary(make: Maker) -> str:
    places = make.constant(np.int64([[0, 3, 5, 9]]))
    angles = make.weight(10, 4)
    x = make.input("x", [1, 2, 4, 8])
    return make("RotaryEmbedding", x, make("Cos", angles), make("Sin", angles), places)


def attention(make: Maker) -> str:
    """Of grouped queries, under a constant mask, of operands that nothing declares."""
    x = make("Relu", make.input("x", [1, 3, 16]))
    mask = make.constant(np.triu(np.full((3, 3), -1e4, np.float32), 1))
    keys, values = (make("MatMul", x, make.weight(16, 8)) for _ in range(2))
    return make("Attention", x, keys, values, mask, q_num_heads=4, kv_num_heads=2)


def cropped(make: Maker) -> str:
    return make("CenterCropPad", make.input("x", [4, 7]), make.constant(np.int64([6, 4])))


@pytest.mark.parametrize("network", [norm, rotary, attention, cropped])
def test_a_definition_needs_no_declared_types(tmp_path, network):
    """As tools leave them out: of stored weights, and of what is computed on the way."""
    make = Maker()
    path = make.save(tmp_path / "m.onnx", [network(make)], opset=23)
    (x,) = make.inputs
    shape = [axis.dim_value for axis in x.type.tensor_type.shape.dim]
    hold_to_onnxruntime(path, {"x": normal(*shape)})


def test_what_a_definition_cannot_do_names_the_operator_of_the_graph(tmp_path):
    make = Maker()
    size = make.input("size", [2], np.int64)
    y = make("CenterCropPad", make.input("x", [4, 7]), size)
    path = make.save(tmp_path / "m.onnx", [y], opset=18)
    with pytest.raises(NeedsConstant, match="inside of the node CenterCropPad.*it rests on size"):
        convert_graph(path, tmp_path / "m.mlpackage")


# --- loops


def step(nodes, inputs, outputs, constants=()):
    return helper.make_graph(nodes, "step", inputs, outputs, constants)


def powers(again: str = "go"):
    """x, x^2, x^3 ...: handed on, and given by each step, as long as `again` says."""
    nodes = [
        helper.make_node("Mul", ["now", "x"], ["next"]),
        helper.make_node("Cast", ["i"], ["real"], to=1),
        helper.make_node("Add", ["next", "real"], ["given"]),
        helper.make_node("Less", ["i", "two"], ["early"]),
        helper.make_node("ReduceMax", ["next"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "bound"], ["small"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    two, bound = (
        helper.make_tensor("two", 7, [], [2]),
        helper.make_tensor("bound", 1, [], [1e9]),
    )
    inputs = [info("i", 7, []), info("go", 9, []), info("now")]
    outputs = [info({"go": "on"}.get(again, again), 9, []), info("next"), info("given")]
    return step(nodes, inputs, outputs, [two, bound])


@pytest.mark.parametrize(("again", "steps"), [("go", 4), ("early", 4), ("early", "")])
def test_a_loop_of_known_length(tmp_path, again, steps):
    """By its count, by its condition, and by both, whichever ends first."""
    make = Maker()
    make.input("x", [2, 3])
    count = steps and make.constant(np.int64(steps))
    go = make.constant(np.array(True))
    last, rows = make("Loop", count, go, "x", count=2, body=powers(again))
    path = make.save(tmp_path / "m.onnx", [last, rows])
    program = hold_to_onnxruntime(path, {"x": normal(2, 3)})
    taken = 3 if again == "early" else 4
    assert list(program.features) == ["x"] and taken == sum(
        op.type == "mul" for op in program.operations
    )


def test_a_loop_within_a_loop(tmp_path):
    make = Maker()
    make.input("x", [2, 3])
    two = helper.make_tensor("two_", 7, [], [2])
    inner = helper.make_node("Loop", ["two_", "", "outer"], ["out", "all"], body=powers())
    body = step(
        [inner, helper.make_node("Identity", ["goes"], ["still"])],
        [info("j", 7, []), info("goes", 9, []), info("outer")],
        [info("still", 9, []), info("out"), info("all")],
        [two],
    )
    results = make("Loop", make.constant(np.int64(2)), "", "x", count=2, body=body)
    hold_to_onnxruntime(make.save(tmp_path / "m.onnx", results), {"x": normal(2, 3)})


def test_a_scan_forward_and_backward(tmp_path):
    """A recurrent cell, as exported: along axis 1, one output stacked in the opposite order."""
    make = Maker()
    make.input("x", [2, 5, 3])
    make.input("h", [2, 4])
    body = step(
        [
            helper.make_node("MatMul", ["row", "w"], ["seen"]),
            helper.make_node("Add", ["seen", "old"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["new"]),
            helper.make_node("Neg", ["new"], ["given"]),
            helper.make_node("Add", ["row", "again"], ["both"]),
        ],
        [info("old"), info("row"), info("again")],
        [info("new"), info("given"), info("both")],
        [helper.make_tensor("w", 1, [3, 4], normal(12))],
    )
    results = make(
        "Scan", "h", "x", "x", count=3, body=body, num_scan_inputs=2, scan_input_axes=[1, 1],
        scan_input_directions=[0, 1], scan_output_axes=[1, -1], scan_output_directions=[0, 1],
    )  # fmt: skip
    path = make.save(tmp_path / "m.onnx", results)
    hold_to_onnxruntime(path, {"x": normal(2, 5, 3), "h": normal(2, 4)})


@pytest.mark.parametrize(
    ("count", "again", "error", "said"),
    [
        ("n", "go", NeedsConstant, "length that is known only when the program runs.*make n known"),
        (3, "small", NeedsConstant, "a Loop that ends by what it computes"),
        (MOST, "go", UnsupportedOp, "unrolled, to 65,536 nodes at most"),
        ("", "go", UnsupportedOp, "unrolled, to 65,536 nodes at most"),
        (0, "go", UnsupportedOp, "of no steps"),
    ],
)
def test_a_loop_that_cannot_be_unrolled(tmp_path, monkeypatch, count, again, error, said):
    make = Maker()
    make.input("x", [2])
    if count == "n":
        make.input("n", [], np.int64)
    elif count != "":
        count = make.constant(np.int64(count))
    if error is UnsupportedOp:
        monkeypatch.setattr("mlprogram.onnx.graph.control.MOST", 20)
        said = said.replace("65,536", "20")
    results = make("Loop", count, "", "x", count=2, body=powers(again))
    path = make.save(tmp_path / "m.onnx", results)
    with pytest.raises(error, match=said):
        convert_graph(path, tmp_path / "m.mlpackage")
    assert not (tmp_path / "m.mlpackage").exists()


# --- bits and regions


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("known", [True, False])
def test_bits_are_shifted(tmp_path, dtype, direction, known):
    make = Maker()
    x, by = dtype([[1, 3, 7, 200], [5, 0, 129, 255]]), dtype([1, 0, 7, 3])
    given = {"x": x} if known else {"x": x, "by": by}
    make.input("x", [2, 4], dtype)
    amount = make.constant(by) if known else make.input("by", [4], dtype)
    y = make("BitShift", "x", amount, direction=direction)
    hold_to_onnxruntime(make.save(tmp_path / "m.onnx", [y]), given)


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("batch", [1, 2])
def test_regions_are_aligned(tmp_path, opset, batch):
    """Inside, over an edge, empty, and far outside of the image."""
    make = Maker()
    rois = np.float32([[1, 2, 9, 7], [-3, -2, 4, 30], [5, 5, 5, 5], [60, 60, 70, 90]])
    shape = [batch, 3, 8, 11]
    x, regions = make.input("x", shape), make.input("rois", [4, 4])
    images = make.constant(np.int64([0, batch - 1, 0, batch - 1]))
    how = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}
    y = make("RoiAlign", x, regions, images, **how)
    path = make.save(tmp_path / "m.onnx", [y], opset=opset)
    hold_to_onnxruntime(path, {"x": normal(*shape), "rois": rois})


def test_regions_that_cannot_be_aligned(tmp_path):
    for how, said in (({"mode": "max"}, "the max of a region"), ({}, "sampling_ratio of 1")):
        make = Maker()
        make.input("x", [1, 3, 8, 8])
        y = make("RoiAlign", "x", make.input("r", [2, 4]), make.constant(np.int64([0, 0])), **how)
        path = make.save(tmp_path / "m.onnx", [y])
        with pytest.raises(UnsupportedOp, match=said):
            convert_graph(path, tmp_path / "m.mlpackage")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[1, 3, 4, 6], [2, 3, 4, 6], [1, 2, 3, 4, 5], [1, 1, 1, 1]])
def test_a_grid_of_any_batch(tmp_path, size, align):
    make = Maker()
    axes = len(size) - 2
    theta = make.input("theta", [size[0], axes, axes + 1])
    y = make("AffineGrid", theta, make.constant(np.int64(size)), align_corners=align)
    path = make.save(tmp_path / "m.onnx", [y], opset=20)
    if align and size[-1] == 1:  # ONNX Runtime has 1 there, onnx's own code -1, torch 0
        with pytest.raises(UnsupportedOp, match="aligned corners of an axis of 1"):
            convert_graph(path, tmp_path / "m.mlpackage")
    else:
        hold_to_onnxruntime(path, {"theta": normal(size[0], axes, axes + 1)})
