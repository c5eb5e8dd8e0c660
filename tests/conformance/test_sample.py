"""A fixed sample of coremltools' own op tests, judged by `run.py` as the full run is."""

from run import explained, failures, reason, run_tests, summary


def test_sample_agrees_with_apples_expected_values():
    records = run_tests("--sample")
    counts = summary(records)
    assert sum(counts["predicted"]["fp32"]) > 500
    assert len(counts["ops"]) > 120
    assert not [(r["id"], r["why"]) for r in explained(records).get(None, [])]
    assert len(failures(records)) < 0.1 * sum(map(sum, counts["predicted"].values()))


def test_a_reason_covers_its_cases_up_to_its_bound():
    known = [{"tests": "a.py::*[x]", "within": 0.5, "once": True, "reason": "rounding"}]
    record = {"id": "a.py::b[x]", "once": True, "why": "Max absolute difference: 0.25"}
    assert reason(record, known) == "rounding"
    for change in ({"why": "Max absolute difference: 0.75"}, {"why": "crash"}, {"once": False}):
        assert reason(record | change, known) is None
    assert reason(record | {"id": "a.py::b[y]"}, known) is None


def test_a_case_whose_process_died_is_a_failure():
    """Such a report names no backend and no ops; a failure without a prediction does name one."""
    died = {"id": "a.py::b", "outcome": "failed", "why": "crashed", "ops": [], "half": False}
    assert failures([died | {"backend": []}, died | {"backend": ["", "", ""]}]) == [
        died | {"backend": []}
    ]
