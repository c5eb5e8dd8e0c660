"""A fixed sample of coremltools' own op tests, judged by `run.py` as the full run is."""

from run import explained, failed, reason, run_tests, summary


def test_sample_agrees_with_apples_expected_values():
    records = run_tests("--sample")
    counts = summary(records)
    assert sum(counts["predicted"]["fp32"]) > 500
    assert len(counts["ops"]) > 120
    assert not [(r["id"], r["why"]) for r in explained(records).get(None, [])]
    assert sum(map(failed, records)) < 0.1 * sum(map(sum, counts["predicted"].values()))


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
    died = case | {"outcome": "failed", "backend": []}
    unread = died | {"backend": ["mlprogram", "fp32", "iOS16"]}
    skipped = unread | {"outcome": "skipped"}
    counts = summary([died, unread, skipped])
    assert counts["predicted"] == {"fp16": [0, 1], "fp32": [0, 1]}
    assert explained([died, unread, skipped])[None] == [died, unread]
