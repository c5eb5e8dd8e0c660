"""What is known of a graph: folded, computed by the operator, a branch taken, an order found."""

from _graphs import Maker, helper, hold_to_onnxruntime, numpy_helper, onnx
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidWeights, UnsupportedOp
from mlprogram.onnx.graph import convert_graph
import numpy as np
from onnxruntime import quantization
import pytest

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize(("rows", "axis"), [(64, 1), (100, 0), (3, 1)])
def test_known_elements_are_gathered(tmp_path, rows, axis):
    """As BERT gathers its token types: onnx's reference evaluator fails, or takes others."""
    make = Maker()
    shape = (1, rows) if axis else (rows, 1)
    table = make.constant(RANDOM.integers(0, 50, shape))
    places = RANDOM.integers(-rows, rows, (1, 7) if axis else shape)
    found = make("GatherElements", table, make.constant(places), axis=axis)
    x = make.input("x", [*places.shape, 4])
    path = make.save(
        tmp_path / "model.onnx", [make("Add", x, make("Gather", make.weight(50, 4), found))]
    )
    program = hold_to_onnxruntime(
        path, {"x": RANDOM.standard_normal((*places.shape, 4), np.float32)}
    )
    assert [op.type for op in program.operations if op.type.startswith("gather")] == []


def test_what_the_operator_computes_may_be_a_shape(tmp_path):
    make = Maker()
    sizes = make.constant(np.int64([[2, 3, 4, 6]] * 2))
    shape = make("GatherElements", sizes, make.constant(np.int64([[3, 0]])), axis=1)
    x = make.input("x", [3, 4])
    y = make("Reshape", x, make("Squeeze", shape, make.constant(np.int64([0]))))
    path = make.save(tmp_path / "model.onnx", [y])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((3, 4), np.float32)})


def test_both_reasons_are_said(tmp_path):
    make = Maker()
    table, places = make.constant(np.int64([[2**40]])), make.constant(np.int64([[0]]))
    make.input("x", [1, 1], np.int64)
    y = make("Add", "x", make("GatherElements", table, places, axis=1))
    path = make.save(tmp_path / "model.onnx", [y])
    with pytest.raises(UnsupportedOp, match=r"constants: .*; nor is it given .*beyond int32"):
        convert_graph(path, tmp_path / "made.mlpackage")


class Images(quantization.CalibrationDataReader):
    """A few images to find the ranges by."""

    def __init__(self):
        self.left = iter(
            [{"x": RANDOM.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(3)]
        )

    def get_next(self):
        return next(self.left, None)


@pytest.mark.parametrize(
    ("opset", "per_channel"),
    [(11, False), *[(n, by) for n in (13, 15, 17, 18) for by in (False, True)]],
)
def test_eight_bits_as_onnxruntime_quantises(tmp_path, opset, per_channel):
    """onnx's reference evaluator has no DequantizeLinear before opset 19."""
    make = Maker()
    y = make("Conv", make.input("x", [1, 3, 8, 8]), make.weight(8, 3, 3, 3), make.weight(8))
    y = make("Flatten", make("MaxPool", make("Relu", y), kernel_shape=[2, 2], strides=[2, 2]))
    y = make("Add", make("MatMul", y, make.weight(72, 5)), make.weight(5))
    path = make.save(tmp_path / "real.onnx", [y], opset)
    made = tmp_path / "whole.onnx"
    how = {"quant_format": quantization.QuantFormat.QDQ, "per_channel": per_channel}
    quantization.quantize_static(path, made, Images(), **how)
    assert "DequantizeLinear" in {node.op_type for node in onnx.load(made).graph.node}
    image = RANDOM.standard_normal((1, 3, 8, 8), np.float32)
    hold_to_onnxruntime(made, {"x": image}, fused=False)


def branch(*nodes, constants=()):
    """A branch of an `If`, that gives what the last of its nodes gives."""
    result = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    return helper.make_graph(nodes, "branch", [], [result], constants)


def squeezed(make: Maker, x: str) -> str:
    """What torch's older exporter writes for `squeeze(0)` where it does not know the size."""
    size = make("Gather", make("Shape", x), make.constant(np.int64(0)))
    one = make("Equal", size, make.constant(np.int64(1)))
    axes = numpy_helper.from_array(np.int64([0]), "axes")
    then = branch(helper.make_node("Squeeze", [x, "axes"], ["z"]), constants=[axes])
    other = branch(helper.make_node("Identity", [x], ["z"]))
    return make("If", one, then_branch=then, else_branch=other)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_known_condition_takes_its_branch(tmp_path, rows):
    make = Maker()
    y = squeezed(make, make("Relu", make.input("x", ["N", 4, 3])))
    path = make.save(tmp_path / "model.onnx", [y])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((rows, 4, 3), np.float32)})


def test_branches_in_branches_share_names(tmp_path):
    """Each has a `z` of its own; one is known, and is a shape behind it."""
    make = Maker()
    x, truth = make.input("x", [2, 6]), make.constant(np.array([True]))
    sizes = numpy_helper.from_array(np.int64([4, 3]), "sizes")
    known = branch(helper.make_node("Identity", ["sizes"], ["z"]), constants=[sizes])
    shape = make("If", truth, then_branch=known, else_branch=known)
    inner = branch(helper.make_node("Neg", [x], ["z"]))
    nodes = [
        helper.make_node("If", [truth], ["z"], then_branch=inner, else_branch=inner),
        helper.make_node("Mul", ["z", x], ["last"]),
    ]
    y = make("If", truth, then_branch=branch(*nodes), else_branch=inner)
    path = make.save(tmp_path / "model.onnx", [make("Reshape", y, shape), y])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 6), np.float32)})


def test_an_input_that_is_made_known_decides(tmp_path):
    """As the sampling rate of a model of speech does; without it the `If` is refused."""
    make = Maker()
    x, rate = make.input("x", [3]), make.input("rate", [], np.int64)
    fast = make("Equal", rate, make.constant(np.int64(16000)))
    then = branch(helper.make_node("Relu", [x], ["z"]))
    y = make("If", fast, then_branch=then, else_branch=branch(helper.make_node("Neg", [x], ["z"])))
    path, out = make.save(tmp_path / "model.onnx", [y]), tmp_path / "made.mlpackage"
    with pytest.raises(UnsupportedOp, match=r"If that makes.*control flow.*, or make rate known"):
        convert_graph(path, out)
    for rate, want in ((16000, [0, 0, 2]), (8000, [1, 0, -2])):
        convert_graph(path, out, "fp32", constants={"rate": np.int64(rate)}, force=True)
        (got,) = MLProgram(out, precision="fp32").predict({"x": np.float32([-1, 0, 2])}).values()
        assert np.array_equal(got, want)


def test_what_a_branch_rests_on_is_told(tmp_path):
    """An input that shapes the graph by way of a branch is named, as any other."""
    make = Maker()
    make.input("x", [2, 3])
    make.input("shape", [2], np.int64)
    inner = branch(helper.make_node("Abs", ["shape"], ["z"]))
    truth = make.constant(np.array([True]))
    y = make("Reshape", "x", make("If", truth, then_branch=inner, else_branch=inner))
    path = make.save(tmp_path / "model.onnx", [y])
    with pytest.raises(UnsupportedOp, match="it rests on shape"):
        convert_graph(path, tmp_path / "made.mlpackage")


@pytest.mark.parametrize("opset", [9, 17])
def test_nodes_may_stand_in_any_order(tmp_path, opset):
    """ONNX Runtime sorts them; an `If` takes what its branches take."""
    make = Maker()
    y = make("Exp", make("Neg", make("Add", make.input("x", [3]), make.constant(np.float32(1)))))
    value = numpy_helper.from_array(np.array([True]))
    make.nodes.append(helper.make_node("Constant", [], ["truth"], value=value))
    then = branch(helper.make_node("Mul", [y, "x"], ["z"]))
    make.nodes.insert(
        0, helper.make_node("If", ["truth"], ["y"], then_branch=then, else_branch=then)
    )
    make.nodes.reverse()
    path = make.save(tmp_path / "model.onnx", ["y"], opset)
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal(3, np.float32)})


@pytest.mark.parametrize("opset", [9, 17])
def test_a_circle_is_refused(tmp_path, opset):
    make = Maker()
    make.input("x", [3])
    make.nodes.append(helper.make_node("Add", ["x", "b"], ["a"], name="first"))
    make.nodes.append(helper.make_node("Relu", ["a"], ["b"]))
    path = make.save(tmp_path / "model.onnx", ["b"], opset)
    with pytest.raises(InvalidWeights, match=r"'first' \(Add\) of .*'b' is what nothing"):
        convert_graph(path, tmp_path / "made.mlpackage")


def test_a_size_of_minus_one_is_open(tmp_path):
    """PaddlePaddle writes it so."""
    make = Maker()
    path = make.save(tmp_path / "model.onnx", [make("Relu", make.input("x", ["N", 3]))])
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, path)
    with pytest.raises(InvalidInput, match=r"shape \(\?, 3\).*--shape x=1,3"):
        convert_graph(path, tmp_path / "made.mlpackage")
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 3), np.float32)})
