"""Packages with image inputs: what is done to pixels, on both sides, as a whole."""

from _sources import export, package
import coremltools as ct
from mlprogram.onnx.source import compare_with_source
import pytest
import torch
from torch import nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Network(nn.Module):
    """Its own normalisation, if it has one, and a convolution. x (1, 3, 8, 10)."""

    def __init__(self, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), divisor=1.0):
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.divisor = nn.Conv2d(3, 6, 3, stride=2), divisor
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))
        self.plain = not any(mean) and divisor == 1

    def forward(self, x):
        x = x if self.plain else (x / self.divisor - self.mean) / self.std
        return torch.relu(self.conv(x))


def compared(
    tmp_path, network, scale, bias=(0.0, 0.0, 0.0), ending=".pt2", example=None, **options
):
    """The package of a network, with an image's scale and bias, against the network itself."""
    x = {"x": torch.randn(1, 3, 8, 10) if example is None else example}
    source = export(network.eval(), x, tmp_path / f"source{ending}")
    layout = ct.colorlayout.BGR if options.pop("bgr", False) else ct.colorlayout.RGB
    path = package(network.eval(), x, tmp_path / "image.mlpackage", True, scale=scale,
                   bias=list(bias), color_layout=layout)  # fmt: skip
    return compare_with_source(path, source, trust_source=True, **options)


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_one_that_normalises_by_itself(tmp_path, ending):
    found = compared(tmp_path, Network(MEAN, STD), 1 / 255, ending=ending)
    assert found.equal, str(found)
    assert "pixels / 255" in found.notes[0]


def test_one_that_the_package_normalises(tmp_path):
    bias = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
    found = compared(tmp_path, Network(), 1 / 255 / 0.226, bias)
    assert found.equal, str(found)
    assert found.notes[0] == (
        "source input 'x' gets pixels as the package scales them, RGB (the source does not show "
        "which values it takes; --pixels says it)"
    )


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_double_normalisation(tmp_path, ending):
    """The scale and the bias of the conversion do what the network does again."""
    bias = [-mean / 0.226 for mean in MEAN]
    found = compared(tmp_path, Network(MEAN, STD), 1 / 255 / 0.226, bias, ending)
    assert found.first.kind == "double normalisation", str(found)
    assert found.first.node.op in ("div.Tensor", "Div")


def test_a_division_by_255_done_twice(tmp_path):
    found = compared(tmp_path, Network((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 255.0), 1 / 255)
    assert found.first.kind == "double normalisation", str(found)


def test_a_division_by_255_that_nobody_does(tmp_path):
    """https://github.com/apple/coremltools/issues/2438."""
    found = compared(tmp_path, Network(MEAN, STD), 1.0)
    assert found.first.kind == "missing normalisation", str(found)
    example = torch.rand(1, 3, 8, 10)
    found = compared(tmp_path, Network(), 1.0, example=example)
    assert found.first.kind == "missing normalisation", str(found)


def test_the_order_of_channels(tmp_path):
    """https://github.com/apple/coremltools/issues/1843."""
    found = compared(tmp_path, Network(MEAN, STD), 1 / 255, bgr=True)
    assert found.first.kind == "channel order" and "BGR" in found.first.cause, str(found)
    found = compared(tmp_path, Network(MEAN, STD), 1 / 255, bgr=True, channels="bgr")
    assert found.equal, str(found)


def test_another_mean(tmp_path):
    """https://github.com/apple/coremltools/issues/244."""
    found = compared(tmp_path, Network(), 2 / 255, (-0.9,) * 3, pixels="signed")
    assert found.first.kind == "normalisation", str(found)


def test_a_fault_behind_the_image_is_still_found(tmp_path):
    """What is done to pixels is right, so that the convolution is named."""
    x = {"x": torch.rand(1, 3, 8, 10)}
    source = export(Network().eval(), x, tmp_path / "source.pt2")
    wrong = Network().eval()
    wrong.conv.bias.data.zero_()
    path = package(wrong, x, tmp_path / "image.mlpackage", True, scale=1 / 255, bias=[0.0] * 3)
    found = compare_with_source(path, source, trust_source=True)
    assert (found.first.node.op, found.first.kind) == ("conv2d.default", "bias"), str(found)
