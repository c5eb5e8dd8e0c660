"""precision="ane": the engine's published activations, by the sources' own numbers."""

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.ane.claims import find
from mlprogram.compare.packages import compare_packages
from mlprogram.errors import InvalidInput
from mlprogram.run.native_forms import FORMS
import numpy as np
import pytest
import torch

N = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The sum of x, x plus one, and its activations."""
    shape = mb.TensorSpec((1, N, 1, 1), dtype=types.fp16)

    @mb.program(input_specs=[shape], opset_version=ct.target.iOS18)
    def built(x):
        ones = np.ones((2, N, 1, 1), np.float16)
        kinds = ("silu", "sigmoid", "tanh", "softplus")
        return (
            mb.conv(x=x, weight=ones, pad_type="valid", name="conv"),
            mb.add(x=x, y=np.float16(1), name="more"),
            mb.gelu(x=x, mode="EXACT", name="gelu"),
            *(getattr(mb, kind)(x=x, name=kind) for kind in kinds),
        )

    path = tmp_path_factory.mktemp("engine") / "activations.mlpackage"
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(built, compute_precision=ct.precision.FLOAT32, **options).save(str(path))
    return path


def op(kind, x):
    """The engine's form of an op, on a half tensor."""
    return FORMS[kind](x.float()).half()


def half(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).half()


#: The largest error that was measured of each form, with fp16's own rounding of the result.
@pytest.mark.parametrize(
    "kind, reach, seen",
    [("sigmoid", 10, 3.355e-3), ("tanh", 6, 1.613e-3), ("silu", 10, 1.491e-2), ("gelu", 8, 6.2e-3)],
)
def test_forms_are_as_far_off_as_was_measured(kind, reach, seen):
    exact = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
    }[kind]
    x = torch.arange(-reach, reach, 2.0**-9).half()
    error = (op(kind, x).double() - exact(x.double())).abs().max().item()
    assert seen * 0.9 < error < seen * 1.1
    beyond = half(-12, 12)
    expected = {"sigmoid": [0, 1], "tanh": [-1, 1]}.get(kind, [0, 12])
    assert op(kind, beyond).tolist() == expected


def test_silu_is_off_near_zero_as_was_measured_and_its_form_by_tanh_is_not():
    x = torch.linspace(-0.04, 0.04, 801).half()  # mean |silu| 0.010
    exact = torch.nn.functional.silu(x.double())
    assert 0.008 < exact.abs().mean() < 0.0102
    native = (op("silu", x).double() - exact).abs().mean()
    assert 0.5 < native / find("silu-small").value < 2  # 0.0011 was measured
    tanh = op("tanh", x * 0.5).double()
    assert (0.5 * x.double() * (1 + tanh) - exact).abs().max() < 1e-5


def test_softplus_is_zero_where_its_power_overflows():
    x = half(0, 9.9, 11, 11.2, 20)
    y = op("softplus", x)
    torch.testing.assert_close(y[:3], torch.nn.functional.softplus(x)[:3])
    assert y[3:].tolist() == [0, 0] and 11 <= find("softplus-large").value < 11.2


@pytest.mark.parametrize(
    "value, changed", [(0.3, {"gelu", "sigmoid", "silu", "tanh"}), (12, {"softplus"})]
)
def test_activations_change_and_nothing_else(path, value, changed):
    x = np.full((1, N, 1, 1), value, np.float16)
    plain, found = (MLProgram(path, precision=p).predict({"x": x}) for p in ("fp16", "ane"))
    assert {name for name in plain if not np.array_equal(plain[name], found[name])} == changed
    np.savez(path.with_name("x.npz"), x=x)
    inputs = path.with_name("x.npz")
    said = compare_packages(path, inputs=inputs, precision="ane", tolerance=1e-3).text
    assert {*said.rpartition("outputs apart: ")[2].split(", ")} == changed
    assert "with the engine's own activations" in said


@pytest.mark.parametrize("wrong", ["bf16", "ane:silu", ""])
def test_wrong_precisions_are_refused(path, wrong):
    with pytest.raises(InvalidInput, match="precision must be"):
        MLProgram(path, precision=wrong)
