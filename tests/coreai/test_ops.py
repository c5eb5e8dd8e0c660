"""coremltools' own op tests, with Core AI in Core ML's place, and the counts of such a run."""

from importlib.util import find_spec

import op_tests
import pytest

REPORT = """<testsuites><testsuite>
<testcase classname="A" name="equal"/>
<testcase classname="A" name="wrong"><failure message="not equal"/></testcase>
<testcase classname="A" name="died"><error message="crashed"/></testcase>
<testcase classname="A" name="lacking"><skipped message="refused: x.mlpackage: Core AI has no
counterpart for gru ('y', function 'main')"/></testcase>
<testcase classname="A" name="open"><skipped message="refused: a flexible size: fp32"/></testcase>
<testcase classname="A" name="late"><skipped message="refused: x.mlpackage: Core AI refuses the
program: 'coreai.reshape' op has a fault"/></testcase>
<testcase classname=".TestNormalizationLocalResponseNorm"
name="test_builder_to_backend_smoke[fp32]"><failure message="not equal"/></testcase>
<testcase classname="A" name="other"><skipped message="requires TensorFlow"/></testcase>
</testsuite></testsuites>"""


def test_what_counts_as_equal_refused_and_failed(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    found = op_tests.counted(tmp_path / "report.xml")
    assert (found["equal"], found["refused"], found["other"]) == (1, 3, 2)
    assert found["failed"] == ["A::died", "A::wrong"]
    assert found["ops"] == {"flexible size": 1, "gru": 1, "reshape": 1}


@pytest.mark.long
@pytest.mark.skipif(find_spec("coreai") is None, reason="coreai-core is not installed")
def test_no_case_that_is_carried_gives_other_values():
    found = op_tests.run(["elementwise_binary", "linear", "reduction"])
    assert not found["failed"]
    assert found["equal"] > 40
