"""A fixed sample of coremltools' own op tests, judged by `run.py` as the full run is."""

import json
from pathlib import Path

from _long import long_but
from mlprogram.ops import OPS
import pytest
from run import OPS as OP_TESTS
from run import RESULT, explained, failed, headline, run_tests, summary

#: Ops that no test of Apple's predicts with here, and the file of tests/mlprogram that holds them.
OWN = {
    "ceil": "ops/test_elementwise.py",
    "classify": "ops/test_sums.py",
    "conv_quantized": "ops/test_conv_pool.py",
    "logical_and": "ops/test_elementwise.py",
    "logical_not": "ops/test_elementwise.py",
    "logical_or": "ops/test_elementwise.py",
    "logical_xor": "ops/test_elementwise.py",
    "non_maximum_suppression": "ops/test_boxes_views.py",  # what Apple expects needs TensorFlow
}


#: What quick tests take of it.
SOME = ("elementwise_binary", "reduction")
PARTS = {
    "all": ([OP_TESTS], 300),
    "some": ([f"{OP_TESTS}/iOS14/test_{name}.py" for name in SOME], 30),
}


@pytest.fixture(scope="module", params=long_but(PARTS, "some"))
def sample(request):
    """Records of some files or of all, and how many cases pass at the least."""
    paths, least = PARTS[request.param]
    return run_tests(paths, "--sample"), least


@pytest.fixture
def records(sample):
    return sample[0]


def test_sample_agrees_with_apples_expected_values(sample):
    records, least = sample
    found = summary(records)["predicted"]["ops"]
    assert found["fp32"]["passed"] > least
    assert not [(r["id"], r["why"]) for r in explained(records).get(None, [])]
    assert sum(map(failed, records)) < 0.1 * sum(kind["passed"] for kind in found.values())


def test_sample_would_notice_a_broken_executor(records):
    """Its cases are those of tight tolerances; of the rest no more than one in fifty."""
    found = summary(records)["predicted"]["ops"]["fp32"]
    assert found["teeth"] > 0.98 * (found["passed"] + found["failed"])
    assert found["expected"][1] < 1e-4 and found["single"][1] < 1e-5


@pytest.mark.parametrize("sample", ["all"], indirect=True)
@pytest.mark.long
def test_every_op_is_in_a_case_that_would_notice_or_in_a_test_of_ours(records):
    noticed = {op for record in records if record["teeth"] for op in record["ops"]}
    assert OPS.keys() - noticed == OWN.keys()
    for op, file in OWN.items():
        assert f'"{op}"' in (Path(__file__).parents[1] / "mlprogram" / file).read_text(), op


def test_readme_says_what_the_last_full_run_found():
    said = headline(json.loads(RESULT.read_text())["predicted"])
    assert said in (RESULT.parents[1] / "README.md").read_text()
