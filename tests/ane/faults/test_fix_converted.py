"""What coremltools makes of a torch module, once it is mended, gives what torch does."""

from _converters import CASES, Called, agrees, convert, expected
from _pairs import _made
from _planted import alone, ct
from mlprogram import MLProgram
from mlprogram.ane import laws
from mlprogram.ane.faults import mendable, numbers
from mlprogram.ane.faults.fix import fix
from mlprogram.ane.faults.fix.rewrites import REWRITES, UNSURE
import numpy as np
import pytest
import test_fix
import test_loading
import test_runtime_faults
import torch
from torch.nn.functional import rms_norm

OLDER = {"attention-mask-added"}  # of no version that is installed here; see test_fix.py
SLOW = {"fourier-matrix"}  # of 1,024 x 1,024
MENDED = [
    pytest.param(name, marks=[pytest.mark.long] if name in SLOW else [], id=name)
    for name in sorted((CASES.keys() & REWRITES.keys()) - OLDER - UNSURE.keys())
]


@pytest.mark.parametrize("fault", MENDED)
def test_a_mended_package_gives_what_torch_does(fault, tmp_path):
    case = CASES[fault]
    convert(case).save(str(tmp_path / "a.mlpackage"))
    report = fix(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", alone(fault))
    assert {one.fault.id for one in report.mended} == {fault} and not report.left, report.text()
    program = MLProgram(report.out)
    arrays = dict(zip(program.inputs, (x.numpy() for x in case.inputs), strict=True))
    (found,) = program.predict(arrays).values()
    assert agrees(expected(case), found, case.tolerance)


def test_what_may_be_something_else_stays(tmp_path):
    convert(CASES["root-of-square"]).save(str(tmp_path / "a.mlpackage"))
    report = fix(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage")
    assert [one.fault.id for one in report.left] == ["root-of-square"] and report.out is None
    found = numbers.of(tmp_path / "a.mlpackage", laws.check(report.package, mendable()).findings[0])
    assert (found.inputs["x0"][0], found.gives[0], found.should[0]) == (-2, -2, 2)


PAIRS = {case.fault: case for case in (*test_runtime_faults.cases, *test_loading.cases)}
#: Faults whose packages no converter and no case of test_fix.py makes.
OTHERS = sorted(REWRITES.keys() & PAIRS.keys() - CASES.keys() - {c[0] for c in test_fix.CASES})


@pytest.mark.filterwarnings("ignore:Some dimensions in the input shape are unknown")
@pytest.mark.parametrize("fault", OTHERS)
def test_a_planted_fault_is_gone(fault, tmp_path):
    case = PAIRS[fault]
    _made(case.network, True, case.form).save(str(tmp_path / "a.mlpackage"))
    report = fix(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage")
    assert fault in {one.fault.id for one in report.mended} and not report.left, report.text()
    assert not laws.check(report.out, mendable()).findings


def test_each_rewrite_is_tried():
    assert REWRITES.keys() <= mendable().keys()
    tried = {*CASES, *OTHERS, *(case[0] for case in test_fix.CASES)}
    assert REWRITES.keys() <= tried


def _layer(x, mask):
    """A layer of a model that has six faults as coremltools 9.0 converts it for half precision."""
    y = rms_norm(x, (8,), eps=1e-6)
    scores = y @ y.transpose(1, 2) + torch.triu(torch.full((4, 4), -torch.inf), 1)
    scores = scores + (1 - mask)[:, None] * torch.finfo(torch.float32).min
    y = torch.softmax(scores, -1) @ y * torch.reciprocal(1 + x.abs())
    return torch.log_softmax(x + y * 2 ** torch.tanh(x), -1)


@pytest.mark.filterwarnings("ignore:Output, '\\d+', of the source model", "ignore:overflow")
def test_a_model_of_many_faults_gives_what_torch_does(tmp_path):
    x, mask = torch.randn(1, 4, 8, generator=torch.manual_seed(0)), torch.tensor([[1.0, 1, 1, 0]])
    made = ct.convert(
        torch.jit.trace(Called(_layer), (x, mask), check_trace=False),
        inputs=[ct.TensorType("x", x.shape), ct.TensorType("mask", mask.shape)],
        convert_to="mlprogram", minimum_deployment_target=ct.target.iOS17, skip_model_load=True,
    )  # fmt: skip
    made.save(str(tmp_path / "a.mlpackage"))
    report = fix(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage")
    assert {one.fault.id for one in report.mended} == {
        "non-finite", "sentinel-multiplied", "reciprocal-epsilon", "rms-norm-epsilon", "pow-two",
        "log-of-softmax",
    }  # fmt: skip
    arrays = {"x": x.numpy(), "mask": mask.numpy()}
    former, found = (
        next(iter(MLProgram(tmp_path / name).predict(arrays).values()))
        for name in ("a.mlpackage", "b.mlpackage")
    )
    assert np.isnan(former).all()
    np.testing.assert_allclose(found, _layer(x, mask).numpy(), 1e-2, 1e-2)
