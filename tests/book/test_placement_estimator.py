"""The estimates: what is shipped is what was fitted; what lies outside of the data is a range."""

import json

from _segmenter import GRAPHS, PLANS, ROOT, script
from ane_book_pages.segmenter.fitting import ROOFS, fit
from mlprogram.ane.placement.estimator import Estimator, work
from mlprogram.ane.placement.graph import GraphOp
from mlprogram.ane.placement.support import table
from mlprogram.package.values import TensorType
import pytest

COSTS = script("fit_segmenter").COSTS


def conv(channels: int, positions: int) -> GraphOp:
    x = TensorType("fp16", (1, channels, 1, positions))
    weight = TensorType("fp16", (channels, channels, 1, 1))
    return GraphOp("conv", "conv", {"x": (x,)}, (x,), {"weight": (weight,)})


def test_what_is_shipped_is_what_the_script_fits():
    assert json.loads(COSTS.read_text()) == json.loads(json.dumps(fit(GRAPHS, PLANS)))


def test_work_is_counted_as_in_the_planners_log():
    """gFlopCnt and totalMB of 751K's aotcost/*/*.tap, commit b5625d5."""
    x = TensorType("fp16", (1, 64, 32, 32))
    weight = TensorType("fp16", (64, 64, 3, 3))
    found = work(GraphOp("conv", "", {"x": (x,)}, (x,), {"weight": (weight,)}))
    assert found.flops == pytest.approx(0.0755e9, rel=1e-3)
    assert found.bytes == pytest.approx(0.3203 * 2**20, rel=1e-3)
    rows = TensorType("fp16", (1, 128, 256))
    weight = TensorType("fp16", (512, 256))
    out = TensorType("fp16", (1, 128, 512))
    found = work(GraphOp("linear", "", {"x": (rows,)}, (out,), {"weight": (weight,)}))
    assert found.flops == pytest.approx(0.01678e9, rel=1e-3)
    head = TensorType("fp16", (1, 8, 128, 64))
    attention = {name: (head,) for name in ("query", "key", "value")}
    found = work(GraphOp("scaled_dot_product_attention", "", attention, (head,)))
    assert found.flops == pytest.approx(0.0003932e9, rel=1e-3)
    assert found.bytes == 0.5 * 2**20


def test_an_op_far_larger_than_any_seen_is_a_range_up_to_the_roofline():
    m4 = Estimator.of("m4")
    assert all(low == high for low, high in m4.times(conv(64, 64)).values())
    large = conv(4096, 1)
    low, high = m4.times(large)["ane"]
    assert low == pytest.approx(work(large).flops / 471.18e6, rel=1e-3)
    assert high == pytest.approx(2 * 4096**2 / (68 * 2**30) * 1e3, rel=1e-2)


def test_between_two_leaves_both_hold():
    """Operations per byte that nobody measured, between 56 and 67."""
    m4, op = Estimator.of("m4"), conv(256, 128)
    assert work(op).intensity == 64
    assert all(low < high for low, high in m4.times(op).values())
    rates = [work(op).flops / (ms * 1e6) for ms in m4.times(op)["ane"]]
    assert rates == pytest.approx([16151.7, 7160.8], rel=1e-3)


def linear(inputs: int, outputs: int) -> GraphOp:
    x, y = (TensorType("fp16", (1, size)) for size in (inputs, outputs))
    return GraphOp(
        "linear", "", {"x": (x,)}, (y,), {"weight": (TensorType("fp16", (outputs, inputs)),)}
    )


@pytest.mark.parametrize("chip", ["m4-pro", "m5-max"])
def test_a_linear_layer_counts_as_a_square_whatever_its_rows(chip):
    """By the plans of three networks: as many, four times and a fourth of the rows of columns."""
    for plan in (p for p in PLANS if p.chip == chip and p.network != "resnet50"):
        by_shape = {}
        for op, ms in zip(plan.ops, plan.milliseconds(ROOFS["ane"]), strict=True):
            if op.type == "linear":
                by_shape[op.operand("weight").shape] = (ms, work(op).flops)
        rates = {round(flops / ms / 1e9, 2) for ms, flops in by_shape.values()}
        assert len(by_shape) in (0, 3) and len(rates) <= 1, (plan.network, by_shape)
    low, high = Estimator.of("m4").times(linear(1024, 256))["bnns"]
    assert low == high == pytest.approx(2 * 1024 * 1024 / 68.8371e6, rel=1e-3)


def spread(others: list[dict]) -> dict[str, tuple[float, float]]:
    """How far estimates of other chips lie from the M4's: (least, most) factor by "ane" and "cpu".

    others: single estimates of other chips, as in `chip_estimates.json`. What lies inside of an
    M4's range counts as 1.
    """
    m4 = Estimator.of("m4")
    first = {graph.name: graph.estimates[0] for graph in GRAPHS}
    factors: dict[str, list[float]] = {"ane": [1.0], "cpu": [1.0]}
    for each in others:
        same = first[each["graph"]]
        factors["ane"].append(each["ane"] / same["ane"])
        factors["cpu"].append(each["cpu"] / same["bnns"])
    for plan in PLANS:
        for op, ms, on in zip(plan.ops, plan.milliseconds(ROOFS["ane"]), plan.on_ane, strict=True):
            low, high = m4.times(op)["ane" if on else "bnns"]
            factors["ane" if on else "cpu"].append(ms / min(max(ms, low), high))
    return {device: (min(found), max(found)) for device, found in factors.items()}


def test_a_borrowed_estimate_is_as_wide_as_chips_differ():
    """The widening is the least and the most of what is published of other chips, over the M4's."""
    facts = json.loads((ROOT / "research/measurements/chip_estimates.json").read_text())
    for device, found in spread(facts["estimates"]).items():
        assert table()["widening"][device] == pytest.approx(found, abs=0.01)
        assert table()["widening"][device][0] <= found[0]
    (low, high), op = table()["widening"]["cpu"], conv(64, 64)
    exact, wide = (Estimator.of(chip).times(op)["bnns"] for chip in ("m4", "m5"))
    assert wide == pytest.approx((low * exact[0], high * exact[1]))
    assert Estimator.of("m6").times(op)["bnns"] == exact


@pytest.mark.parametrize("chip", ["m4-pro", "m5-max"])
def test_a_chip_of_whose_networks_plans_are_known_has_estimates_of_its_own(chip):
    """On the ANE, each within its range; an M5 Max's by the factor that is not known."""
    estimator = Estimator.of(chip)
    least, most = table()["chips"][chip].get("scale", (1.0, 1.0))
    for plan in (p for p in PLANS if p.chip == chip):
        times = plan.milliseconds(ROOFS["ane"])
        for op, ms, on_ane in zip(plan.ops, times, plan.on_ane, strict=True):
            if on_ane:
                low, high = estimator.times(op)["ane"]
                assert low <= 1.001 * least * ms and high >= 0.999 * most * ms, op
    small, m4 = conv(64, 1), Estimator.of("m4")  # less than half of any that it has
    low, high = table()["widening"]["ane"]
    assert estimator.times(small)["ane"] == pytest.approx(
        (low * m4.times(small)["ane"][0], high * m4.times(small)["ane"][1])
    )
