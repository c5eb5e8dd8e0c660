"""Public reports of conversions with wrong numbers, rebuilt: the op that they end at is named.

Each test names its thread, which was read for what was wrong. Where coremltools 9.0 has the fault
it converts the model here; where the report is of another converter or of Core ML itself, the
package is made so that it computes what was reported.
"""

from collections.abc import Callable
import functools

from _foreign import exported
from _sources import export, package
from mlprogram.onnx.graph import convert_graph
from mlprogram.onnx.source import compare_with_source
import numpy as np
import onnx
from onnx import helper
import torch
from torch import nn
from torch.nn import functional as F

X = torch.from_numpy(np.random.default_rng(5).standard_normal((1, 4, 9, 7)).astype(np.float32))


class Calls(nn.Module):
    """A function of x between two convolutions."""

    def __init__(self, function: Callable):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 5, 1)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def held(tmp_path, right: Callable, wrong: Callable):
    """The package of a wrong function against the source with the right one."""
    source = export(Calls(right).eval(), {"x": X}, tmp_path / "source.pt2")
    path = package(Calls(wrong).eval(), {"x": X}, tmp_path / "wrong.mlpackage", True)
    return compare_with_source(path, source, trust_source=True)


def test_gelu_by_tanh_that_torch_export_loses(tmp_path):
    """https://github.com/apple/coremltools/pull/2863: the argument is read where it stands only in
    TorchScript, so a GELU by tanh becomes the exact one."""
    module = Calls(lambda x: F.gelu(4 * x, approximate="tanh")).eval()
    source = export(module, {"x": X}, tmp_path / "source.pt2")
    exported(module, tmp_path / "wrong.mlpackage", (X,))
    found = compare_with_source(tmp_path / "wrong.mlpackage", source, trust_source=True)
    assert found.first.node.op == "gelu.default" and found.first.kind == "activation", str(found)
    assert "GELU by erf" in found.first.cause


def test_average_of_a_window_over_the_edge(tmp_path):
    """https://github.com/apple/coremltools/issues/2772: with ceil_mode the sums of windows at the
    edge are divided by the whole kernel. The package is coremltools' own conversion."""
    average = functools.partial(F.avg_pool2d, kernel_size=2, ceil_mode=True)
    found = held(tmp_path, average, average)
    assert found.first.node.op == "avg_pool2d.default", str(found)
    assert found.first.kind == "average" and "divisor_override 4" in found.first.cause


def test_average_without_its_divisor(tmp_path):
    """https://github.com/apple/coremltools/issues/1901: sums in the place of averages, 49 times."""
    found = held(tmp_path, lambda x: F.avg_pool2d(x, 7, 4, 3),
                 lambda x: F.avg_pool2d(x, 7, 4, 3) / 49)  # fmt: skip
    assert (found.first.node.op, found.first.kind) == ("avg_pool2d.default", "scale"), str(found)


def test_symmetric_padding_as_reflection(tmp_path):
    """https://github.com/apple/coremltools/issues/2280: `symmetric` repeats the edge, `reflect`
    does not."""

    def symmetric(x):
        return torch.cat([x[..., :2].flip(-1), x, x[..., -2:].flip(-1)], -1)

    found = held(tmp_path, symmetric, lambda x: F.pad(x, (2, 2, 0, 0), mode="reflect"))
    assert found.first.node.op == "slice.Tensor", str(found)
    assert found.first.value.op == "pad"


def test_epsilon_that_grows_with_the_largest_value(tmp_path):
    """https://github.com/apple/coremltools/issues/2821: RMSNorm divides by the largest value first,
    and adds the epsilon after."""

    def wrong(x):
        y = x / (m := x.abs().amax(-1, keepdim=True))
        return x / (torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-2) * m)

    found = held(tmp_path, lambda x: F.rms_norm(x, (7,), eps=1e-2), wrong)
    assert found.first.node.op == "rms_norm.default", str(found)


def test_gru_of_the_other_reset(tmp_path):
    """https://github.com/onnx/onnx-coreml/issues/576: PyTorch and ONNX agree on a network with a
    GRU, Core ML does not; the reset gate is before or after the product (`linear_before_reset`)."""
    torch.manual_seed(1)
    gru = nn.GRU(4, 6, batch_first=True)
    export(gru.eval(), {"x": torch.randn(1, 5, 4)}, tmp_path / "source.onnx")
    model = onnx.load(tmp_path / "source.onnx")
    (node,) = [node for node in model.graph.node if node.op_type == "GRU"]
    (switch,) = [item for item in node.attribute if item.name == "linear_before_reset"]
    switch.i = 0
    onnx.save(model, tmp_path / "wrong.onnx")
    convert_graph(tmp_path / "wrong.onnx", tmp_path / "wrong.mlpackage")
    found = compare_with_source(tmp_path / "wrong.mlpackage", str(tmp_path / "source.onnx"))
    assert (found.first.node.op, found.first.kind) == ("GRU", "linear_before_reset"), str(found)


def test_flattened_in_the_other_layout(tmp_path):
    """https://github.com/apple/coremltools/issues/147: a CRNN reads its columns in another order,
    since the converter reshapes before it permutes."""

    def columns(x, order):
        return x.permute(*order).reshape(1, 9, 42)[:, None].expand(1, 6, 9, 42)

    found = held(tmp_path, lambda x: columns(x, (0, 2, 3, 1)), lambda x: columns(x, (0, 2, 1, 3)))
    assert found.first.kind == "layout" and found.first.node.op.startswith("permute"), str(found)


class Divided(nn.Module):
    def forward(self, a, b):
        return torch.div(a, b, rounding_mode="floor")


def test_whole_numbers_that_become_floating_point(tmp_path):
    """https://github.com/apple/coremltools/issues/2733: the numbers are equal, and the types are
    not."""
    inputs = {"a": torch.tensor([10, -10, 7, -7]).int(), "b": torch.tensor([3, 3, 2, 2]).int()}
    source = export(Divided(), inputs, tmp_path / "source.pt2")
    path = package(Divided(), inputs, tmp_path / "p.mlpackage", False)
    found = compare_with_source(path, source, trust_source=True)
    assert found.equal, str(found)
    assert found.notes == ["output 'div' is float32 in the package and int32 in the source"]


class Remainder(nn.Module):
    def forward(self, x):
        y = 2 * x
        return (torch.sin(y) % 1 + 0 * y).sum(-1)


def test_an_op_that_is_folded_away_is_not_paired_with_the_next(tmp_path):
    """https://github.com/apple/coremltools/issues/2836: x % 1 becomes zeros, which no op makes."""
    x = {"x": torch.linspace(0.1, 3, 12).reshape(2, 6)}
    source = export(Remainder(), x, tmp_path / "source.pt2")
    path = package(Remainder(), x, tmp_path / "p.mlpackage", False)
    found = compare_with_source(path, source, trust_source=True)
    assert found.first.node.op == "remainder.Scalar", str(found)
    assert found.first.value is None and found.first.kind == "missing"


def test_outputs_whose_names_core_ml_does_not_take(tmp_path):
    """Each is held to its own, also where another has the name that it would get."""
    ports = [helper.make_tensor_value_info(n, 1, [3]) for n in ("a", "b", "y.1", "y_1", "1.z")]
    pairs = [("a", "b", "y.1"), ("b", "a", "y_1")]
    nodes = [helper.make_node("Sub", [first, second], [out]) for first, second, out in pairs]
    nodes.append(helper.make_node("Relu", ["y_1"], ["1.z"]))
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "g.onnx")
    path = convert_graph(tmp_path / "g.onnx", tmp_path / "g.mlpackage")
    found = compare_with_source(path, str(tmp_path / "g.onnx"))
    assert found.equal and found.notes == [], str(found)
    assert [*found.errors.items()] == [("y.1", 0), ("y_1", 0), ("1.z", 0)]
