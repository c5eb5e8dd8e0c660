"""Faults of a conversion, planted in five networks: each is found at its op, with its cause."""

from collections.abc import Callable
from typing import NamedTuple

from _long import long_but
from _sources import NETWORKS, faulty, made, package, source_files
from mlprogram.onnx.source import compare_with_source
import pytest
import torch
from torch import nn


class Fault(NamedTuple):
    """change: what is wrong in the package. op: of the source, to be named; kind: the cause."""

    network: str
    change: Callable[[nn.Module], None]
    op: str
    kind: str


def setting(**values) -> Callable[[nn.Module], None]:
    return lambda module: [setattr(module, *item) for item in values.items()] and None


def conv(name: str, **values) -> Callable[[nn.Module], None]:
    return lambda module: setting(**values)(getattr(module, name))


def transposed(name: str) -> Callable[[nn.Module], None]:
    return lambda module: getattr(module, name).weight.copy_(getattr(module, name).weight.T.clone())


def of_kernel(module: nn.Module) -> None:
    module.wide.weight.copy_(module.wide.weight.transpose(2, 3).clone())


def one_row(module: nn.Module) -> None:
    module.v.weight[5] *= 2


def half_row(module: nn.Module) -> None:
    module.point.weight[3] *= 0.5
    module.point.bias[3] *= 0.5


def no_bias(name: str) -> Callable[[nn.Module], None]:
    return lambda module: getattr(module, name).bias.zero_()


def channels(module: nn.Module) -> None:
    module.stem.weight.copy_(module.stem.weight.flip(1).clone())


def gates(module: nn.Module) -> None:
    i, f, g, o = module.lstm.weight_ih_l0.clone().chunk(4)
    module.lstm.weight_ih_l0.copy_(torch.cat([f, i, g, o]))


def no_recurrent_bias(module: nn.Module) -> None:
    module.lstm.bias_hh_l0.zero_()


def open_mask(module: nn.Module) -> None:
    module.mask.mul_(1e-4)


FAULTS = {
    "mean": Fault("cnn", setting(mean=0.5), "sub", "constant"),
    "deviation": Fault("cnn", setting(deviation=0.4), "div", "scale"),
    "channel order": Fault("cnn", channels, "conv2d", "order"),
    "batch norm epsilon": Fault("cnn", conv("norm", eps=1e-2), "batch_norm", "epsilon"),
    "clip limits": Fault("cnn", setting(limit=1.5), "clamp", "limits"),
    "padding mode": Fault("cnn", setting(padding="replicate"), "pad", "mode"),
    "stride": Fault("cnn", conv("down", stride=(1, 1)), "conv2d", "stride"),
    "dilation": Fault("cnn", conv("wide", dilation=(1, 1), padding=(1, 1)), "conv2d", "dilation"),
    "kernel transposed": Fault("cnn", of_kernel, "conv2d", "weights"),
    "floor for ceil": Fault("cnn", setting(ceil_mode=False), "max_pool2d", "rounding of the size"),
    "align_corners": Fault("cnn", setting(align_corners=True), "upsample", "align_corners"),
    "scale of a row": Fault("cnn", half_row, "conv2d", "scale"),
    "bias dropped": Fault("cnn", no_bias("wide"), "conv2d", "bias"),
    "layout": Fault("detector", setting(order=(0, 3, 2, 1)), "permute", "layout"),
    "sign of an offset": Fault("detector", setting(sign=-1.0), "", "sign"),
    "softmax for sigmoid": Fault("detector", setting(classes="softmax"), "sigmoid", "activation"),
    "bias of a head": Fault("detector", no_bias("box"), "conv2d", "bias"),
    "layer norm epsilon": Fault("encoder", conv("norm", eps=1e-5), "layer_norm", "epsilon"),
    "mask constant": Fault("encoder", setting(masked=-2.0), "mul", "constant"),
    "axis of the softmax": Fault("encoder", setting(axis=-2), "softmax", "axis"),
    "GELU by tanh": Fault("encoder", setting(approximate="tanh"), "gelu", "activation"),
    "weights transposed": Fault("encoder", transposed("k"), "linear", "weights"),
    "quantised scale": Fault("encoder", one_row, "linear", "scale"),
    "heads not transposed": Fault("encoder", setting(flat=True), "transpose", "layout"),
    "query and key exchanged": Fault("encoder", setting(swap=True), "add", "layout"),
    "order of the gates": Fault("recurrent", gates, "lstm", "gates"),
    "recurrent bias": Fault("recurrent", no_recurrent_bias, "lstm", "bias"),
    "time backwards": Fault("recurrent", setting(backwards=True), "lstm", "order"),
    "axis of the classes": Fault("recurrent", setting(axis=1), "softmax", "axis"),
    "rotary sign": Fault("decoder", setting(sign=1.0), "mul", "constant"),
    "RMS epsilon": Fault("decoder", setting(eps=1e-5), "add", "constant"),
    "scale of attention": Fault("decoder", setting(scale=1 / 8), "mul", "constant"),
    "causal mask": Fault("decoder", open_mask, "add", "constant"),
    "projection transposed": Fault("decoder", transposed("o"), "linear", "weights"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The path of a network's source, by its name and ending."""
    return source_files(tmp_path_factory.mktemp("sources"), made, NETWORKS)


def found(name: str, source: str, tmp_path, half: bool):
    fault = FAULTS[name]
    module = faulty(fault.network, fault.change)
    path = package(module, NETWORKS[fault.network][1], tmp_path / "faulty.mlpackage", half)
    return compare_with_source(path, source, trust_source=True)


#: What is named otherwise in ONNX, where the exporter joins a norm to its convolution, or has an
#: operand or attribute where ATen has none.
IN_ONNX = {
    "batch norm epsilon": "scale", "heads not transposed": "", "rotary sign": "sign",
    "time backwards": "direction",
}  # fmt: skip
OPS = {"conv2d": "conv", "linear": "matmul", "max_pool2d": "maxpool", "clamp": "clip",
       "upsample": "resize", "batch_norm": "conv", "layer_norm": "layernormalization",
       "permute": "transpose", "gelu": "div"}  # fmt: skip


CASES = [(name, half) for name in FAULTS for half in (True, False)]


@pytest.mark.parametrize(("name", "half"), long_but(CASES, *CASES[::10]))  # of every network some
def test_names_the_op_and_the_cause(name, half, sources, tmp_path):
    fault = FAULTS[name]
    held = found(name, sources(fault.network), tmp_path, half)
    assert not held.equal
    assert fault.op in held.first.node.op and held.first.kind == fault.kind, str(held)


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_names_them_in_onnx(name, sources, tmp_path):
    fault = FAULTS[name]
    held = found(name, sources(fault.network, ".onnx"), tmp_path, half=True)
    assert held.first.kind == IN_ONNX.get(name, fault.kind), str(held)
    if name != "heads not transposed":
        assert OPS.get(fault.op, fault.op) in held.first.node.op.lower(), str(held)


@pytest.mark.parametrize(
    "half", [True, pytest.param(False, marks=pytest.mark.long)], ids=["fp16", "fp32"]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sound_package_gives_no_alarm(name, half, sources, tmp_path):
    path = package(made(name), NETWORKS[name][1], tmp_path / "sound.mlpackage", half)
    for ending in (".pt2", ".onnx"):
        held = compare_with_source(path, sources(name, ending), trust_source=True)
        assert held.equal, str(held)
        assert max(held.errors.values()) < (1e-3 if half else 1e-4)
        assert f"{held.matched:,} of its {held.values:,} values are in the package" in str(held)
