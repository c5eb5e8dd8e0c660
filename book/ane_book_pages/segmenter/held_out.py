"""Judge predictions of placement on what they were not fitted to, beside simple rules.

Two kinds of data are left out: a half of an M4's graphs, and one of five networks of a chip. An op
whose type and work was fitted is not counted in either. Three rules stand beside: the roofline
without fitted rates, everything on the ANE, and the ANE for a graph of 2 MB of weights and more.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import median, quantiles

from ane_book_pages.segmenter.fitting import ROOFS, fit
from ane_book_pages.segmenter.networks import NetworkPlan
from ane_book_pages.segmenter.published import Predict, PublishedGraph, judge, sums
from mlprogram.ane.placement.estimator import Estimator, Range, work
from mlprogram.ane.placement.graph import GraphOp
from mlprogram.ane.placement.path import ANE
from mlprogram.ane.placement.placed import place_ops
from mlprogram.ane.placement.support import Support, support, table

Supported = Callable[[GraphOp, str], Support]
LEAST = 2_000_000  # bytes of weights from which a simple rule expects the ANE
Estimate = tuple[Range, float]  # (least, most) ms predicted, ms published


@dataclass(frozen=True)
class Errors:
    """How far single estimates lie from what was published.

    median, ninth: the median and the 90th percentile of the factor, 1 for an exact estimate; of a
    range its geometric middle counts. within: the share that lies inside of the predicted range.
    """

    count: int
    median: float
    ninth: float
    within: float

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> "Errors":
        found = [*estimates]
        factors = [exp(abs(log(sqrt(low * high) / ms))) for (low, high), ms in found]
        inside = sum(low * 0.995 <= ms <= high * 1.005 for (low, high), ms in found)
        return cls(len(found), median(factors), quantiles(factors, n=10)[-1], inside / len(found))


@dataclass(frozen=True)
class LeftOut:
    """What was left out, with how it was met by what the rest taught.

    counts: by rule, as of `judge`. errors: by "fitted" and "roofline", of the single estimates.
    verdict: of a network, what `place` says of it as a whole.
    """

    name: str
    counts: dict[str, dict[str, int]]
    errors: dict[str, Errors]
    verdict: str = ""


def rules(estimator: Estimator, rest: Iterable[GraphOp]) -> dict[str, Predict]:
    """The prediction with these estimates, and the simple rules beside it.

    rest: the ops that were not left out. "place" knows what the table of support says; "support
    too" only of types that the rest has, with parameters up to the rest's.
    """
    bare, known = replace(estimator, trees={}, own={}), supported_by(rest)

    def placed(with_: Estimator, supported: Supported = support) -> Predict:
        return lambda ops: place_ops(ops, with_, supported=supported).devices

    def heavy(ops: Sequence[GraphOp]) -> list[str]:
        return ["ANE" if sum(map(_weights, ops)) >= LEAST else "CPU"] * len(ops)

    return {
        "place": placed(estimator),
        "place, support left out too": placed(estimator, known),
        "roofline alone": placed(bare),
        "all on the ANE": lambda ops: ["ANE"] * len(ops),
        "ANE from 2 MB of weights": heavy,
    }


def supported_by(rest: Iterable[GraphOp]) -> Supported:
    """What is known of an op from others: nothing of a type or of a parameter beyond theirs.

    Parameters are those of ops that are known to be taken: one with 65,536 groups teaches nothing.
    """
    most: dict[tuple[str, str], float] = {}
    for op in rest:
        most.setdefault((op.type, ""), 0.0)
        for key, value in _tried(op) if support(op).ane else []:
            most[key] = max(most.get(key, 0.0), value)

    def known(op: GraphOp, chip: str) -> Support:
        within = (op.type, "") in most and all(value <= most.get(k, 0) for k, value in _tried(op))
        return support(op, chip) if within else Support(None, "not among what was kept")

    return known


def _tried(op: GraphOp) -> list[tuple[tuple[str, str], float]]:
    """The largest value of each parameter of an op for which the table of support has a range."""
    names = table()["tried"].get(op.type, {}).keys() & op.attributes.keys()
    return [((op.type, name), max(op.numbers(name), default=0)) for name in names]


def _weights(op: GraphOp) -> int:
    return sum(type_.nbytes for types in op.constants.values() for type_ in types if type_.shape)


# --- halves of an M4's graphs ---------------------------------------------------------------------


def halves(graphs: Sequence[PublishedGraph]) -> Iterator[LeftOut]:
    """Each half of the graphs, met by what the other taught."""
    for left_out in (True, False):
        yield half_left_out(
            [g for g in graphs if g.fitted != left_out], [g for g in graphs if g.fitted == left_out]
        )


def half_left_out(rest: Sequence[PublishedGraph], left: Sequence[PublishedGraph]) -> LeftOut:
    """Some graphs, met by what the rest taught."""
    estimator, learned = Estimator.made_of("m4", fit(rest)), sums(rest)
    met = rules(estimator, (op for graph in rest for op in graph.ops))
    counts = {name: judge(left, predict, learned) for name, predict in met.items()}
    single = {}
    for name, each in (("fitted", estimator), ("roofline", replace(estimator, trees={}))):
        single[name] = Errors.of(_of_graphs(left, learned, each.times))
    return LeftOut(f"{len(left)} graphs", counts, single)


def _of_graphs(
    graphs: Iterable[PublishedGraph], learned: set[tuple], times: Callable
) -> Iterator[Estimate]:
    """The estimates of every op that was not learned, each once for each backend that takes it."""
    seen = set(learned)
    for graph in graphs:
        for op, published in zip(graph.ops, graph.estimates, strict=True):
            if (op.type, work(op)) not in seen:
                seen.add((op.type, work(op)))
                predicted = times(op)
                yield from ((predicted[b], ms) for b, ms in published.items() if ms > 0)


# --- networks -------------------------------------------------------------------------------------


def networks_left_out(
    plans: Sequence[NetworkPlan], graphs: Sequence[PublishedGraph], chip: str
) -> Iterator[LeftOut]:
    """Each network on a chip, met by what its other networks and an M4's graphs taught."""
    here = [plan for plan in plans if plan.chip == chip]
    for left in here:
        rest = [plan for plan in here if plan is not left]
        estimator = lent(chip, fit(graphs, rest))
        kept = [op for plan in rest for op in plan.ops]
        kept += [op for graph in graphs for op in graph.ops]
        learned = {(op.type, work(op)) for op in kept}
        met = rules(estimator, kept)
        single = {"fitted": estimator, "roofline": replace(estimator, trees={}, own={})}
        yield LeftOut(
            f"{left.network}, {chip}",
            {name: _met(left, predict(left.ops)) for name, predict in met.items()},
            {name: Errors.of(_of_plan(left, learned, each)) for name, each in single.items()},
            place_ops(left.ops, estimator, supported=supported_by(kept)).verdict,
        )


def lent(chip: str, facts: dict) -> Estimator:
    """The estimator of a chip from fitted facts: its own on the ANE, an M4's elsewhere, as it is.

    The widening of what is lent is left out: it was taken from the networks that are judged.
    """
    return replace(Estimator.made_of("m4", facts), chip=chip, own=Estimator.trees_of(facts, chip))


def _met(plan: NetworkPlan, devices: Sequence[str]) -> dict[str, int]:
    """Counts of ops: all, exact, depends, missed."""
    words = ["ANE" if on else "CPU" for on in plan.on_ane]
    exact = sum(a == b for a, b in zip(words, devices, strict=True))
    opened = [*devices].count("depends")
    return {"ops all": len(words), "ops exact": exact, "ops depends": opened,
            "ops missed": len(words) - exact - opened}  # fmt: skip


def _of_plan(plan: NetworkPlan, learned: set[tuple], estimator: Estimator) -> Iterator[Estimate]:
    seen = set(learned)
    for op, ms, on_ane in zip(plan.ops, plan.milliseconds(ROOFS[ANE]), plan.on_ane, strict=True):
        if on_ane and (op.type, work(op)) not in seen:
            seen.add((op.type, work(op)))
            yield estimator.times(op)[ANE], ms
