"""Tensors of more than five axes, which Core ML does not have, in the middle of a graph."""

from _graphs import Maker, helper, hold_to_onnxruntime
from mlprogram.errors import UnsupportedOp
from mlprogram.onnx.graph import convert_graph
import numpy as np
import pytest
import torch
from torch import nn

RANDOM = np.random.default_rng(4)
SHAPE = (2, 3, 1, 4, 3, 2)


class Bands(nn.Module):
    """Each band of a spectrum beside its neighbours, as speech models have it: an `nn.Unfold`."""

    def __init__(self):
        super().__init__()
        self.bands = nn.Unfold((1, 3), padding=(0, 1))
        self.mix = nn.Conv2d(9, 4, 1)

    def forward(self, x):
        b, c, t, f = x.shape
        return self.mix(self.bands(x).reshape(b, 3 * c, t, f))


class Windows(nn.Module):
    """Windows of an image: scaled and averaged while they have six axes."""

    def forward(self, x):
        b, h, w, c = x.shape
        y = x.view(b, h // 4, 4, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5) * 2 + 1
        return y.mean((3, 4)), y.reshape(-1, 8, c)


MODELS = [
    (nn.Unfold((3, 2), padding=1, stride=2, dilation=(1, 2)), (2, 3, 8, 9)),
    (Bands(), (1, 3, 5, 7)),
    (Windows(), (2, 8, 4, 3)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "shape"), MODELS, ids=["unfold", "bands", "windows"])
def test_what_pytorch_exports(tmp_path, model, shape):
    path, x = tmp_path / "exported.onnx", torch.randn(shape)
    names = {"input_names": ["x"], "dynamo": False, "opset_version": 17}
    torch.onnx.export(model.eval(), (x,), path, **names)
    hold_to_onnxruntime(path, {"x": x.numpy()})


def test_unfold_as_torchs_present_exporter_writes_it(tmp_path):
    """One GatherND to six axes, of rows and columns that are known."""
    make = Maker()
    x = make("Transpose", make.input("x", [2, 3, 6, 5]), perm=[2, 3, 0, 1])
    rows, columns = np.ogrid[0:4, 0:3], np.ogrid[0:3, 0:3]
    rows = (rows[0] + rows[1])[..., None, None]
    places = np.stack(np.broadcast_arrays(rows, columns[0] + columns[1]), -1)
    y = make("GatherND", x, make.constant(places))  # 4, 3, 3, 3, N, C
    y = make("Transpose", y, perm=[4, 5, 1, 3, 0, 2])
    y = make("Reshape", y, make.constant(np.int64([2, 27, 12])))
    path = make.save(tmp_path / "model.onnx", [y])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 3, 6, 5), np.float32)})


def constants(make: Maker, *values) -> list[str]:
    return [make.constant(np.asarray(value)) for value in values]


#: What is done to a tensor of six axes, SHAPE: the operator, its other inputs, its attributes.
STEPS = {
    "turned": ("Transpose", [], {"perm": [5, 4, 3, 2, 1, 0]}),
    "joined": ("Transpose", [], {"perm": [3, 4, 5, 2, 0, 1]}),
    "row": ("Gather", [np.int64(1)], {"axis": 3}),
    "rows": ("Gather", [np.int64([[0, -1], [1, 1]])], {"axis": 3}),
    "places": ("GatherND", [np.int64([[1, 2], [0, -1]])], {}),
    "longer": ("Unsqueeze", [np.int64([0, 7])], {}),
    "shorter": ("Squeeze", [np.int64([2])], {}),
    "flat": ("Flatten", [], {"axis": 4}),
    "repeated": ("Expand", [np.int64([1, 1, 5, 1, 1, 1])], {}),
    "tiled": ("Tile", [np.int64([1, 2, 1, 1, 1, 2])], {}),
    "back": ("Slice", [np.int64([-1]), np.int64([-9]), np.int64([4]), np.int64([-2])], {}),
    "scaled": ("Mul", [np.float32([[[2]], [[3]], [[4]], [[5]]])], {}),
    "chosen": ("Max", [RANDOM.standard_normal((2, 1, 1, 4, 1, 2)).astype(np.float32)], {}),
    "bent": ("Sigmoid", [], {}),
    "bounded": ("Clip", [np.float32(-0.5), np.float32(0.5)], {}),
    "mean": ("ReduceMean", [], {"axes": [1, 4], "keepdims": 0}),
    "largest": ("ReduceMax", [], {"axes": [-1, 0], "keepdims": 1}),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_at_six_axes(tmp_path, step):
    make = Maker()
    op, more, attributes = STEPS[step]
    x = make("Reshape", make.input("x", [6, 4, 6]), make.constant(np.int64(SHAPE)))
    y = make(op, x, *constants(make, *more), **attributes)
    path = make.save(tmp_path / "m.onnx", [make("Reshape", y, make.constant(np.int64([-1])))], 13)
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((6, 4, 6), np.float32)})


def test_parts_at_six_axes_and_two_that_take_them(tmp_path):
    make = Maker()
    x = make("Reshape", make.input("x", [6, 4, 6]), make.constant(np.int64(SHAPE)))
    few, many = make("Split", x, *constants(make, np.int64([1, 3])), count=2, axis=3)
    y = make("Concat", many, make("Neg", few), few, axis=-3)
    flat = make.constant(np.int64([-1]))
    path = make.save(tmp_path / "m.onnx", [make("Reshape", y, flat), make("Reshape", many, flat)])
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((6, 4, 6), np.float32)})


@pytest.mark.parametrize("op", ["Softmax", "CumSum"])
def test_what_needs_six_axes_is_refused_at_its_node(tmp_path, op):
    make = Maker()
    x = make("Reshape", make.input("x", [6, 4, 6]), make.constant(np.int64(SHAPE)))
    more = constants(make, np.int64(1)) if op == "CumSum" else []
    make.nodes.append(helper.make_node(op, [x, *more], ["y"], name="here"))
    path = make.save(tmp_path / "m.onnx", [make("Reshape", "y", make.constant(np.int64([-1])))])
    with pytest.raises(UnsupportedOp, match=rf"'here' \({op}\).*more than 5 axes, as \(2, 3, 1, 4"):
        convert_graph(path, tmp_path / "made.mlpackage")
