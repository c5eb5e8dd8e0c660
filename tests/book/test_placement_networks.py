"""Five networks: the published plans beside the ops that our own conversion has."""

import json

from _segmenter import PLANS, ROOT, script
from ane_book_pages.segmenter.networks import op_facts
import pytest

FACTS = json.loads((ROOT / "research/measurements/network_plans.json").read_text())
OPS = {"bert": 148, "mobilenet": 118, "resnet50": 122, "siglip": 282, "whisper": 101}


def test_what_an_op_runs_on_agrees_with_the_published_shares():
    """The file per op and the file per network are two of the source's."""
    for plan in PLANS:
        (row,) = (r for r in FACTS["shares"] if (r["chip"], r["network"], r["units"])
                  == (plan.chip, plan.network, "CPU_AND_NE"))  # fmt: skip
        on = sum(share for share, on in zip(plan.shares, plan.on_ane, strict=True) if on)
        assert row["ops"] == len(plan.ops) and on == pytest.approx(row["by_cost"]["ANE"])


def test_by_default_the_two_chips_have_nothing_in_common():
    """All five on the GPU of an M5 Max, for 64 to 100 % on the ANE of an M4 Pro."""
    rows = {(r["chip"], r["network"]): r["by_cost"] for r in FACTS["shares"] if r["units"] == "ALL"}
    assert all(rows["m5-max", name] == {"GPU": 1.0} for name in OPS)
    assert all(rows["m4-pro", name]["ANE"] > 0.6 for name in OPS)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the tracer's, about the code of models in transformers
@pytest.mark.parametrize("name", OPS)
def test_a_network_that_is_built_again_has_the_ops_of_the_file(name):
    built = script("network_plans").built(name)
    known = next(plan for plan in PLANS if plan.network == name)
    assert [op_facts(op) for op in built] == [op_facts(op) for op in known.ops]
