"""Placement beside what was published of the segmenter: choices, support and estimates."""

from _networks import convolutions, save
from _segmenter import GRAPHS, PLANS
from mlprogram.ane import claims
from mlprogram.ane.placement import place
from mlprogram.ane.placement.estimator import Estimator, work
from mlprogram.ane.placement.path import ANE, cost, shortest
from mlprogram.ane.placement.support import support, table
import pytest

CLOSE = 2e-5  # ms: the estimates come with six digits


def test_published_estimates_give_the_published_choices():
    """The source counts 440 exact, 41 of equal cost and 1 other of 482; 462 of them are stored."""
    ways = {"exact": [], "equal": [], "other": []}
    for graph in GRAPHS:
        found = shortest(graph.estimates)
        if [backend == ANE for backend in found.backends] == graph.on_ane:
            ways["exact"].append(graph.name)
        elif cost(graph.estimates, graph.selected) - found.cost < CLOSE:
            ways["equal"].append(graph.name)
        else:
            ways["other"].append(graph.name)
    assert ways["other"] == ["ctx/band_part"], "the one of which the source says so"
    counts = {way: len(names) for way, names in ways.items()}
    assert counts == {"exact": 420, "equal": 41, "other": 1}


def test_support_is_what_was_published():
    """In every graph whose support the segmenter stated; the aim is 98 % of ops."""
    ops = {o.name: (o, "ane" in t) for g in GRAPHS for o, t in zip(g.ops, g.estimates, strict=True)}
    wrong = [name for name, (each, taken) in ops.items() if support(each).ane != taken]
    assert len(ops) > 300
    assert len(wrong) <= 0.01 * len(ops), wrong


def test_an_estimate_beyond_the_data_reaches_the_roofline():
    """Ops of the networks that move more than twice what an M4's graphs have of their type."""
    m4, beyond = Estimator.of("m4"), set()
    for each in (each for plan in PLANS for each in plan.ops):
        if work(each).bytes > 2 * m4.trees[each.type].bytes:
            low, high = m4.times(each)["ane"]
            assert low <= 1.001 * m4.roofs["ane"].ms(work(each)) <= 1.002 * high, each
            beyond.add(each.type)
    assert len(beyond) > 10


def test_every_refusal_rests_on_a_claim():
    """And no op is told to be taken and not."""
    refused = {o.name: support(o) for g in GRAPHS for o in g.ops if support(o).ane is False}
    assert len({found.claim for found in refused.values()}) >= 7
    for found in refused.values():
        assert claims.find(found.claim).support, found
    lists = [table()["taken"], table()["states"], claims.find("ops-refused").value]
    assert lists[0] == sorted(lists[0])
    assert sum(map(len, lists)) == len({name for each in lists for name in each})


def test_a_package_reads_as_the_graph_that_was_published(tmp_path):
    """The convolutions around every op of the published graphs are these: same types, same ms."""
    published = next(graph for graph in GRAPHS if graph.name == "ctx/relu")
    path = save(tmp_path / "four.mlpackage", convolutions(4), (1, 64, 32, 32))
    conv = next(placed for placed in place(path).placed)
    assert [str(t) for t in conv.op.values] == [str(t) for t in published.ops[0].values]
    for backend, (low, high) in conv.times.items():
        assert low == high == pytest.approx(published.estimates[0][backend], rel=1e-3)
