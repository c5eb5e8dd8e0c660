"""What coremltools makes of a torch module, once it is mended, gives what torch does."""

from _converters import CASES, agrees, convert, expected
from _planted import alone
from mlprogram import MLProgram
from mlprogram.ane.faults.fix import fix
from mlprogram.ane.faults.fix.rewrites import REWRITES, UNSURE
import pytest

MENDED = sorted(CASES.keys() & REWRITES.keys() - UNSURE)


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
