"""The segmenter's path: by hand, against every choice there is, and on what was published."""

from itertools import product
from random import Random

from mlprogram.ane.placement.path import ANE, LAUNCH, OUTPUT, SWITCH, cost, segments, shortest
import pytest


def test_a_graph_must_save_a_quarter_of_a_millisecond():
    """0.125 ms to begin on the ANE and 0.125 to leave it."""
    just, short = ({"ane": 0.0, "bnns": LAUNCH + OUTPUT + by} for by in (0.001, -0.001))
    assert shortest([just]).backends == ("ane",)
    assert shortest([short]).backends == ("bnns",)
    assert shortest([just]).cost == pytest.approx(LAUNCH + OUTPUT) == pytest.approx(0.25)


def test_an_island_must_save_three_eighths():
    """0.125 to begin, and 0.125 for each of the two changes of backend."""
    cpu = {"bnns": 0.1}
    for by, device in ((0.001, "ane"), (-0.001, "bnns")):
        island = {"ane": 0.0, "bnns": LAUNCH + 2 * SWITCH + by}
        assert shortest([cpu, island, cpu]).backends == ("bnns", device, "bnns")


def test_the_path_is_the_least_of_all_choices():
    random = Random(7)
    for _ in range(200):
        estimates = [
            {b: random.choice([0.0, 0.1, 0.2, 0.4]) for b in random.choice(TAKES)}
            for _ in range(random.randint(1, 7))
        ]
        choices = [*product(*estimates)]
        least = min(cost(estimates, choice) for choice in choices)
        found = shortest(estimates)
        assert found.cost == pytest.approx(least)
        assert cost(estimates, found.backends) == pytest.approx(least)
        best = [choice for choice in choices if cost(estimates, choice) < least + 1e-9]
        assert [*found.choices] == [frozenset(backends) for backends in zip(*best, strict=True)]


TAKES = [("ane", "bnns"), ("bnns",), ("ane", "bnns", "classic_cpu"), ("bnns", "classic_cpu")]


def test_an_op_that_nothing_takes_is_told():
    with pytest.raises(ValueError, match="op 1 has no backend"):
        shortest([{"bnns": 1.0}, {}])
    assert shortest([]).cost == 0


def test_segments_are_runs_of_one_device():
    assert segments(["bnns", "classic_cpu", ANE, ANE, "bnns"]) == [
        ("cpu", 0, 2),
        ("ane", 2, 4),
        ("cpu", 4, 5),
    ]
