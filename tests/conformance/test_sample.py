"""A fixed sample of coremltools' own op tests, judged by `run.py` as the full run is."""

import json
from pathlib import Path

from _long import long_but
from mlprogram.ops import OPS
import numpy as np
import pytest
from run import OPS as OP_TESTS
from run import RESULT, explained, failed, headline, reason, run_tests, summary
from teeth import Case, share, spoilt

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


def test_a_case_has_teeth_if_it_fails_on_spoilt_results():
    """On what a case compares itself; where its inputs are others, nothing is said."""

    def once(case, tolerance, seeds):
        def call():
            x = np.random.default_rng(next(seeds)).random(4)
            y = case.predicted(None, {"x": x}, lambda: {"y": 2 * x})["y"]
            np.testing.assert_allclose(y, 2 * x, atol=tolerance)

        return call

    for tolerance, seeds, notices in ((1e-4, [0, 0], True), (9, [0, 0], False), (9, [0, 1], None)):
        case = Case()
        call = once(case, tolerance, iter(seeds))
        call()
        assert case.notices(call) is notices


def test_an_error_is_a_share_of_the_range_with_zero():
    assert share(np.float32([1.5, 2]), np.float32([1, 2])) == 0.25
    assert share(np.float16([-1, 3]), np.float32([-1, 2])) == 1 / 3
    assert share([0.5], [0]) == 0.5 and share(np.ones(2), np.inf * np.ones(2)) == float("inf")
    assert share(["a"], ["a"]) is None


@pytest.mark.parametrize("value", [np.float32([0.0, -2]), np.int32([3]), {"cat": 0.5}, "cat", 7])
def test_nothing_survives_spoiling(value):
    wrong = spoilt(value)
    assert type(wrong) is type(value)
    assert not np.any(np.equal(wrong, value)) if isinstance(value, np.ndarray) else wrong != value


@pytest.mark.long
def test_a_run_that_was_cut_short_is_no_result():
    with pytest.raises(SystemExit, match="not all tests ran"):
        run_tests([f"{OP_TESTS}/iOS14/test_random.py"], "-k", "no test has this name")


def test_readme_says_what_the_last_full_run_found():
    said = headline(json.loads(RESULT.read_text())["predicted"])
    assert said in (RESULT.parents[1] / "README.md").read_text()


def test_a_reason_covers_its_cases_up_to_its_bound():
    known = [
        {"tests": "a.py::*[x]", "within": 0.5, "once": True, "says": "Max", "reason": "rounding"}
    ]
    record = {"id": "a.py::b[x]", "once": True, "why": "Max absolute difference: 0.25"}
    assert reason(record, known) == "rounding"
    for change in ({"why": "Max absolute difference: 0.75"}, {"why": "crash"}, {"once": False}):
        assert reason(record | change, known) is None
    assert reason(record | {"id": "a.py::b[y]"}, known) is None


def test_a_case_without_a_prediction_counts_if_it_fails():
    """A process that died leaves no backend; a package that does not open leaves no ops."""
    case = {"id": "a.py::b", "ops": [], "half": False, "once": False, "why": "crashed"}
    case |= {"teeth": None, "single": None, "expected": None}
    died = case | {"outcome": "failed", "backend": []}
    unread = died | {"backend": ["mlprogram", "fp32", "iOS16"]}
    skipped = unread | {"outcome": "skipped"}
    counts = summary([died, unread, skipped])
    found = {"passed": 0, "failed": 1, "teeth": 1}
    assert counts["predicted"] == {"ops": {"fp16": found, "fp32": found}}
    assert explained([died, unread, skipped])[None] == [died, unread]
