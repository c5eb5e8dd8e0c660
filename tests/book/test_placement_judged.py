"""Predictions on what was left out: halves of an M4's graphs, and networks of two other chips."""

from _segmenter import GRAPHS, PLANS, ROOT, script
from ane_book_pages.segmenter import held_out as judged
from ane_book_pages.segmenter.fitting import fit
from ane_book_pages.segmenter.published import judge, sums
from mlprogram.ane.placement.estimator import Estimator, work
from mlprogram.ane.placement.placed import place_ops
import pytest

NOTE = ROOT / "research/placement.md"
CHIPS = ("m4-pro", "m5-max")


@pytest.fixture(scope="module")
def halves():
    return [*judged.halves(GRAPHS)]


@pytest.fixture(scope="module", params=CHIPS)
def networks(request):
    """The plans of a chip, and how each was met by what the others taught."""
    here = [plan for plan in PLANS if plan.chip == request.param]
    return here, [*judged.networks_left_out(PLANS, GRAPHS, request.param)]


def test_one_half_of_the_graphs_predicts_the_other(halves):
    """The aim: 85 % of graphs and 95 % of ops, on those that were not used in fitting."""
    for half in halves:
        counts = half.counts["place"]
        for of in ("graphs", "ops"):
            met = counts[f"{of} exact"] + counts[f"{of} equal"]
            assert met >= 0.97 * counts[f"{of} all"], counts
        assert counts["graphs missed"] <= 2 and counts["graphs all"] > 160
        assert half.counts["place, support left out too"]["graphs missed"] <= 1
        assert half.errors["fitted"].ninth < half.errors["roofline"].ninth


def test_no_half_is_judged_on_what_it_was_fitted_on():
    """No series is in both halves, and an op with a fitted op's type and work is not counted."""
    halves = [[g for g in GRAPHS if g.fitted == fitted] for fitted in (True, False)]
    series = [{g.series for g in half} for half in halves]
    assert series[0].isdisjoint(series[1])
    fitted, other = map(sums, halves)
    assert fitted & other, "some are in both"
    estimator = Estimator.made_of("m4", fit(halves[0]))
    counts = judge(halves[1], lambda ops: place_ops(ops, estimator).devices, fitted | other)
    assert counts["ops all"] == counts["graphs all"] == 0


def test_a_network_that_is_left_out_teaches_nothing(networks):
    """Its estimates are of ops whose type and work no other has, and its own are in no fit."""
    (here, left_out), shared = networks, 0
    for plan, each in zip(here, left_out, strict=True):
        rest = [other for other in here if other is not plan]
        kept = {(op.type, work(op)) for other in (*rest, *GRAPHS) for op in other.ops}
        own = {(op.type, work(op)) for op, on in zip(plan.ops, plan.on_ane, strict=True) if on}
        assert each.name.startswith(plan.network)
        assert 0 < each.errors["fitted"].count == len(own - kept)
        shared += len(own & kept)
    assert shared, "the cast of an image is in two networks"


def test_networks_left_out_are_never_placed_wrong(networks):
    """Every network is on the ANE as a whole, no op is missed; what is not known is left open."""
    _, left_out = networks
    assert [each.verdict for each in left_out] == ["ANE"] * 5
    for each in left_out:
        for name in ("place", "place, support left out too"):
            assert each.counts[name]["ops missed"] == 0, each.name
        assert each.errors["fitted"].median < 1.001


def test_the_note_shows_the_tables():
    for table in script("judge_placement").tables():
        assert table in NOTE.read_text(), table
