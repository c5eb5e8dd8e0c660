"""What `benchmarks/speculation.py` makes of answers, of which not all were timed."""

from pathlib import Path

from ane_book.runtime import Result
import pytest


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return pytest.importorskip("speculation").figures


def answers(**rates: float | None) -> dict[str, Result]:
    return {way: Result("ab", [1, 2], 3, 1.0, rate, "length", 1) for way, rate in rates.items()}


def test_a_kind_of_which_nothing_was_timed_has_no_ratio(figures):
    found = figures([answers(verify=2.0, lookup=4.0)])
    assert found["tokens_per_call"] == 1 and found["speed_over_verify"] is None


def test_an_answer_without_a_rate_is_no_part_of_the_mean(figures):
    timed = answers(decode=1.0, verify=2.0, lookup=8.0)
    found = figures([timed, answers(decode=None, verify=None, lookup=None)])
    assert found["speed_over_verify"] == pytest.approx(4)
    assert found["speed_over_decode"] == pytest.approx(8)
