"""Whole graphs, as exporters write them, against ONNX Runtime; what can be done with the result."""

from _command import mlprogram
from _graphs import Maker, helper, hold_to_onnxruntime, onnx
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput
from mlprogram.onnx.graph import convert_graph
from mlprogram.package import weight_files
import numpy as np
import pytest
import torch
from torch import nn

RANDOM = np.random.default_rng(1)


def cnn(path):
    """Conv, BatchNormalization, pools, a residual, Resize, a head whose shape is computed."""
    make = Maker()
    x = make.input("image.1", ["N", 3, "H", "W"])
    y = make("Conv", x, make.weight(8, 3, 3, 3), make.weight(8), pads=[1, 1, 1, 1], strides=[2, 2])
    norm = [make.constant(make.random.uniform(0.5, 1.5, 8).astype(np.float32)) for _ in range(4)]
    y = make("BatchNormalization", y, *norm)
    skip = make("Relu", y)
    y = make("Conv", skip, make.weight(8, 1, 3, 3), pads=[1, 1, 1, 1], group=8)
    y = make(
        "Add", make("Clip", y, make.constant(np.float32(0)), make.constant(np.float32(6))), skip
    )
    y = make("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    scales = make.constant(np.float32([1, 1, 2, 2]))
    y = make("Resize", y, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    y = make("Concat", y, make("Sigmoid", y), axis=1)
    y = make("GlobalAveragePool", y)
    batch = make("Gather", make("Shape", y), make.constant(np.int64(0)), axis=0)
    batch = make("Unsqueeze", batch, make.constant(np.int64([0])))
    y = make("Reshape", y, make("Concat", batch, make.constant(np.int64([-1])), axis=0))
    y = make("Gemm", y, make.weight(5, 16), make.weight(5), transB=1)
    return make.save(path, [make("Softmax", y, axis=-1)])


def test_a_network_of_convolutions(tmp_path):
    image = RANDOM.standard_normal((2, 3, 32, 48), np.float32)
    program = hold_to_onnxruntime(cnn(tmp_path / "cnn.onnx"), {"image.1": image})
    assert list(program.inputs) == ["image_1"]


def encoder(path):
    """Embeddings, attention with a mask, LayerNormalization, GELU by Erf: a layer of BERT."""
    make, heads, width = Maker(), 4, 32
    ids, mask = make.input("ids", ["B", "T"], np.int64), make.input("mask", ["B", "T"], np.int64)
    x = make("Gather", make.weight(50, width), ids)
    ones = make.constant(np.ones(width, np.float32))
    x = make("LayerNormalization", x, ones, make.weight(width), axis=-1)
    seen = make("Cast", make("Unsqueeze", mask, make.constant(np.int64([1, 2]))), to=1)
    bias = make(
        "Mul", make("Sub", make.constant(np.float32(1)), seen), make.constant(np.float32(-1e4))
    )
    shape = make.constant(np.int64([0, 0, heads, -1]))

    def part(perm: list[int]) -> str:
        y = make("Add", make("MatMul", x, make.weight(width, width)), make.weight(width))
        return make("Transpose", make("Reshape", y, shape), perm=perm)

    scores = make("MatMul", part([0, 2, 1, 3]), part([0, 2, 3, 1]))
    scores = make("Div", scores, make.constant(np.float32((width / heads) ** 0.5)))
    y = make("MatMul", make("Softmax", make("Add", scores, bias), axis=-1), part([0, 2, 1, 3]))
    y = make(
        "Reshape", make("Transpose", y, perm=[0, 2, 1, 3]), make.constant(np.int64([0, 0, width]))
    )
    y = make("LayerNormalization", make("Add", x, y), ones, axis=-1)
    h = make("MatMul", y, make.weight(width, 64))
    erf = make("Erf", make("Div", h, make.constant(np.float32(2**0.5))))
    h = make(
        "Mul",
        make("Mul", h, make("Add", erf, make.constant(np.float32(1)))),
        make.constant(np.float32(0.5)),
    )
    y = make("Add", y, make("MatMul", h, make.weight(64, width)))
    return make.save(path, [y, make("ReduceMean", y, axes=[1], keepdims=0)])


def test_an_encoder_of_text(tmp_path):
    mask = np.ones((2, 9), np.int64)
    mask[1, 5:] = 0
    given = {"ids": RANDOM.integers(0, 50, (2, 9)), "mask": mask}
    hold_to_onnxruntime(encoder(tmp_path / "encoder.onnx"), given)


def audio(path):
    """Reflected edges, a framing convolution, energies, an LSTM both ways, a GRU, a last frame."""
    make = Maker()
    x = make.input("sound", [1, 1, 400])
    x = make("Pad", x, make.constant(np.int64([0, 0, 20, 0, 0, 20])), mode="reflect")
    frames = make("Conv", x, make.weight(24, 1, 40), strides=[20])
    low, high = make("Split", make("Mul", frames, frames), count=2, axis=1)
    y = make("Log", make("Add", make("Add", low, high), make.constant(np.float32(1e-3))))
    y = make("Transpose", y, perm=[2, 0, 1])  # (S, B, I)
    weights = make.weight(2, 32, 12), make.weight(2, 32, 8), make.weight(2, 64)
    y, _, c = make("LSTM", y, *weights, count=3, hidden_size=8, direction="bidirectional")
    y = make(
        "Reshape", make("Transpose", y, perm=[0, 2, 1, 3]), make.constant(np.int64([0, 0, -1]))
    )
    gru = make.weight(1, 18, 16), make.weight(1, 18, 6), make.weight(1, 36)
    y, last = make("GRU", y, *gru, count=2, hidden_size=6, linear_before_reset=1)
    part = [make.constant(np.int64([v])) for v in (-1, -(2**63), 0, -2)]
    return make.save(
        path, [make("Slice", make("Squeeze", y, make.constant(np.int64([1]))), *part), last, c]
    )


def test_a_front_of_audio(tmp_path):
    sound = RANDOM.standard_normal((1, 1, 400), np.float32)
    hold_to_onnxruntime(audio(tmp_path / "audio.onnx"), {"sound": sound})


class Exported(nn.Module):
    """What PyTorch's exporter writes out: a view by sizes, group norm, attention, interpolation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.Hardswish())
        self.up = nn.ConvTranspose2d(16, 16, 3, 2, 1, output_padding=1)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)
        self.end = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8), nn.GELU(), nn.PReLU())

    def forward(self, x):
        x = self.up(self.stem(x))
        x = nn.functional.interpolate(x, size=(5, 6), mode="bicubic", align_corners=False)
        x = x.flatten(2).transpose(1, 2)
        x = x + self.mix(x, x, x, need_weights=False)[0]
        return self.end(x).argmax(-1), self.end(x).cumsum(1)


@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_exports(tmp_path):
    torch.manual_seed(0)
    path, x = tmp_path / "exported.onnx", torch.randn(1, 3, 16, 20)
    torch.onnx.export(Exported().eval(), (x,), path, dynamo=False, opset_version=17)
    (name,) = (i.name for i in onnx.load(path).graph.input)
    hold_to_onnxruntime(path, {name: x.numpy()})


def test_names_that_are_none_of_core_ml_are_changed_and_told(tmp_path):
    """A name that is one stays its owner's, whoever comes first; `state` is a word of MIL's."""
    make = Maker()
    for name in ("a-b", "1", "a_b", "state", "state_workaround"):
        make.input(name, [2, 3])
    total = make("Sum", "a-b", "1", "a_b", "state", "state_workaround")
    for op, x, name in (("Neg", "a-b", "y.0"), ("Neg", "a_b", "y_0"), ("Relu", total, "a_b_2")):
        make.nodes.append(helper.make_node(op, [x], [name]))
    path = make.save(tmp_path / "m.onnx", ["y.0", "y_0", "a_b_2", "1"])
    package = tmp_path / "m.mlpackage"
    done = mlprogram("convert", path, "--out", package, "--precision", "fp32")
    told, verdict = done.stderr.splitlines()
    assert told.endswith(
        "input 'a-b' is 'a_b_3'; input '1' is 'var_1'; input 'state' is 'state_workaround_2'; "
        "output 'y.0' is 'y_0_2'; output '1' is 'var_1_2'"
    )
    assert verdict.startswith("check in fp32: agrees with ONNX Runtime")
    program = MLProgram(package, precision="fp32")
    assert [*program.inputs] == ["a_b_3", "var_1", "a_b", "state_workaround_2", "state_workaround"]
    given = {name: np.full((2, 3), i, np.float32) for i, name in enumerate(program.inputs)}
    found = {name: y[0, 0] for name, y in program.predict(given).items()}
    assert found == {"y_0_2": 0, "y_0": -2, "a_b_2": 10, "var_1_2": 1}
    described = program.package.description
    kept = [feature.shortDescription for feature in (*described.input, *described.output)]
    assert kept[:3] == ["'a-b' of the ONNX graph", "'1' of the ONNX graph", ""]
    assert kept[5:7] == ["'y.0' of the ONNX graph", ""]


def test_half_precision_is_half_at_the_borders_and_close(tmp_path):
    path = cnn(tmp_path / "cnn.onnx")
    image = RANDOM.standard_normal((1, 3, 32, 32), np.float32)
    shapes = {"image.1": image.shape}
    half = MLProgram(convert_graph(path, tmp_path / "half.mlpackage", "fp16", shapes))
    full = convert_graph(path, tmp_path / "full.mlpackage", "fp32", shapes)
    (got,) = half.predict({"image_1": image}).values()
    (want,) = MLProgram(full, precision="fp32").predict({"image_1": image}).values()
    assert got.dtype == np.float16 and want.dtype == np.float32
    assert np.abs(got - want).max() < 5e-3
    assert {
        value.dtype for op in half.operations if op.type == "conv" for _, value in op.outputs
    } == {"fp16"}


def test_constants_in_files_beside_the_graph_are_mapped(tmp_path):
    make = Maker()
    y = make("MatMul", make.input("x", [2, 64]), make.weight(64, 64))
    path = make.save(
        tmp_path / "model.onnx", [y], save_as_external_data=True, location="data", size_threshold=0
    )
    assert (tmp_path / "data").stat().st_size >= 4 * 64 * 64
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 64), np.float32)})


def test_functions_of_the_model_are_inlined(tmp_path):
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Neg", ["s"], ["b"])]
    ids = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "NegSquare", ["a"], ["b"], body, ids[:1])
    make = Maker()
    make.input("x", [3])
    node = helper.make_node("NegSquare", ["x"], ["y"], domain="mine")
    y = helper.make_tensor_value_info("y", 1, [3])
    graph = helper.make_graph([node], "made", make.inputs, [y])
    model = helper.make_model(graph, opset_imports=ids, functions=[function], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    package = convert_graph(tmp_path / "model.onnx", tmp_path / "m.mlpackage", "fp32")
    got = MLProgram(package, precision="fp32").predict({"x": np.float32([1, 2, 3])})
    assert np.array_equal(got["y"], [-1, -4, -9])


def test_an_older_graph_is_carried_over(tmp_path):
    """By onnx's own converter of versions: opset 9's softmax is over all axes from one on."""
    make = Maker()
    path = make.save(tmp_path / "old.onnx", [make("Softmax", make.input("x", [2, 3, 4]))], 9)
    hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((2, 3, 4), np.float32)})


def test_large_weights_go_to_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "FILE_LIMIT", 40_000)
    make = Maker()
    y = make.input("x", [1, 64])
    for _ in range(4):
        y = make("MatMul", y, make.weight(64, 64))  # 16,384 bytes
    path = make.save(tmp_path / "m.onnx", [y])
    program = hold_to_onnxruntime(path, {"x": RANDOM.standard_normal((1, 64), np.float32)})
    sizes = {file.name: file.stat().st_size for file in program.package.weight_files}
    assert sorted(sizes) == ["weight.bin", "weight_1.bin"] and max(sizes.values()) <= 40_000
    monkeypatch.setattr(weight_files, "MOST", 10_000)
    with pytest.raises(InvalidInput, match="with more than 10,000 in one file Core ML"):
        convert_graph(path, tmp_path / "again.mlpackage", "fp32")
    assert not (tmp_path / "again.mlpackage").exists()


def test_the_commands_take_what_comes_out(tmp_path):
    path, package = cnn(tmp_path / "cnn.onnx"), tmp_path / "cnn.mlpackage"
    done = mlprogram("convert", path, "--out", package, "--shape", "image.1=1,3,64,64")
    assert (done.returncode, done.stdout) == (0, f"{package}\n")
    assert done.stderr.count("check in fp") == done.stderr.count("agrees") == 2
    assert "Softmax" in mlprogram("inspect", package, "--kernels").stdout
    assert "on the ANE" in mlprogram("place", package).stdout
    assert "in 1 package" in mlprogram("check", package).stdout
