"""Faults behind an end that hides them, in five networks: each is named at its op.

A fault that cannot be told from a sound package is not among them: one too small for the tolerance,
one that the inputs do not reach, and an op that the package has where the source has none, of
which a norm that follows takes everything away.
"""

from _long import long_but
from _quiet import QUIET
from _quiet_faults import FAULTS, Fault
from _sources import export, package, source_files
import mlprogram
from mlprogram.onnx.source import compare_with_source
import numpy as np
import pytest
import torch
from torch import nn


def made(name: str, fault: Fault | None = None) -> nn.Module:
    """A network with the weights of its seed; statistics as if it had been trained."""
    torch.manual_seed(11)
    module = QUIET[name][0]()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
    if fault is not None:
        with torch.no_grad():
            fault.change(module)
    return module.eval()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The path of a network's source, by its name and ending."""
    return source_files(tmp_path_factory.mktemp("quiet"), made, QUIET)


def compared(name: str, source: str, tmp_path, half: bool, fault: Fault | None = None):
    path = package(made(name, fault), QUIET[name][1], tmp_path / "quiet.mlpackage", half)
    return compare_with_source(path, source, trust_source=True)


def named(found) -> set[str]:
    """The module and the op that a comparison names."""
    node = found.first.node
    return {node.where.split(",")[0], node.op.split(".")[0]}


#: Without --long one fault of each network is tried: what its end hides.
FIRST = {FAULTS[name].network: name for name in reversed(FAULTS)}


CASES = [(name, half) for name in FAULTS for half in (True, False)]


@pytest.mark.parametrize(
    ("name", "half"), long_but(CASES, *((name, True) for name in FIRST.values()))
)
def test_names_the_op_whatever_the_output_says(name, half, sources, tmp_path):
    fault = FAULTS[name]
    found = compared(fault.network, sources(fault.network), tmp_path, half, fault)
    assert not found.equal and fault.names in named(found), str(found)


@pytest.mark.parametrize(
    "half", [True, pytest.param(False, marks=pytest.mark.long)], ids=["fp16", "fp32"]
)
@pytest.mark.parametrize("name", long_but(QUIET, "softmax", "norm"))
def test_a_sound_package_gives_no_alarm(name, half, sources, tmp_path):
    for ending in (".pt2", ".onnx"):
        found = compared(name, sources(name, ending), tmp_path, half)
        assert found.equal, str(found)
        assert "what follows the others agrees" in str(found) or found.matched == found.values


def test_the_error_of_an_output_is_end_to_end(sources, tmp_path):
    """Not since the last value that agrees: what running both shows."""
    fault = FAULTS["softmax: channel scaled"]
    x = QUIET["softmax"][1]["x"].numpy()
    np.savez(tmp_path / "x.npz", x=x)
    path = package(made("softmax", fault), {"x": torch.tensor(x)}, tmp_path / "p.mlpackage", True)
    found = compare_with_source(
        path, sources("softmax"), given=tmp_path / "x.npz", trust_source=True
    )
    (ours,) = mlprogram.open(path, precision="fp32").predict({"x": x}).values()
    theirs = made("softmax")(torch.tensor(x)).detach().numpy()
    (error,) = found.errors.values()
    assert error == pytest.approx(np.abs(ours - theirs).max() / theirs.max(), rel=1e-3)
    assert f"off by {100 * error:.3g} % of its largest value, end to end" in str(found)


def test_a_number_that_half_precision_does_not_round(tmp_path):
    """coremltools stores a slope in single precision, whatever the precision of the program."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.2), nn.Conv2d(6, 2, 1), nn.Sigmoid())
    x = {"input": torch.randn(1, 3, 9, 9)}
    source = export(module.eval(), x, tmp_path / "source.pt2")
    path = package(module, x, tmp_path / "p.mlpackage", True)
    found = compare_with_source(path, source, trust_source=True)
    assert found.equal and found.matched == found.values, str(found)
