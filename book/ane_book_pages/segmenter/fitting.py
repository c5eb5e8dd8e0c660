"""Fit rates of the segmenter's estimator to published estimates: of graphs and of networks' plans.

The estimate of an op is its operations over a rate, and the rate one of a few for its type: the
leaves of a decision tree that is not published. Here such a tree is grown from what was seen. A
node keeps the gap between its sides, so that an op in the gap is known to be either. The plan of a
network has milliseconds on the ANE alone, so a chip of which only plans are known gets trees of its
own for the ANE, in so far as its networks have the types.

`research/experiments/fit_segmenter.py` writes `costs.json` with it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import log, log2
from typing import Any

from ane_book_pages.segmenter.networks import NetworkPlan
from ane_book_pages.segmenter.published import PublishedGraph
from mlprogram.ane.placement.estimator import OpWork, Roof, features, work
from mlprogram.ane.placement.graph import GraphOp
from mlprogram.ane.placement.path import ANE

SAME = 0.005  # rates that differ by less are one: estimates come with six digits
LIKE = 0.03  # of the roofline: parameters that the source does not list show in the bytes
TINY = 1e-5  # ms: less teaches nothing; scalar constants, which nobody wrote down, show in it

#: What is stated in the source's log, not fitted: GFLOP/s and GiB/s of each backend.
CPU: dict[str, dict[str, float]] = {"bnns": {"gflops": 754.543335, "gibs": 56.666664},
       "classic_cpu": {"gflops": 656.0, "gibs": 56.666664}}  # fmt: skip
LOGS = "data/03_compile/opdispatch/aotcost"
CHIPS: dict[str, dict[str, Any]] = {
    "m2": {"source": f"{LOGS}/H14G", "roofs": {"ane": {"gflops": 17200.0, "gibs": 68.0}, **CPU}},
    "m4": {"source": f"{LOGS}/H16G", "roofs": {"ane": {"gflops": 19400.0, "gibs": 68.0}, **CPU}},
    "m6": {"source": "notes/coreml_dispatch.md, 2.4: as the M4 in 490 of 490 graphs",
           "roofs": {"ane": {"gflops": 19400.0, "gibs": 68.0}, **CPU}},
}  # fmt: skip
ROOFS = {backend: Roof(**roof) for backend, roof in CHIPS["m4"]["roofs"].items()}

Sample = tuple[dict[str, float], dict[str, float]]  # features, and GFLOP/s by backend


def samples(graphs: Iterable[PublishedGraph]) -> dict[str, list[Sample]]:
    """By type of op, what was seen of it, each once."""
    found, seen = defaultdict(list), set()
    for graph in graphs:
        for op, times in zip(graph.ops, graph.estimates, strict=True):
            if op.name not in seen and max(times.values()) > TINY and all(times.values()):
                seen.add(op.name)
                found[op.type].append((features(op), rates(op, times)))
    return found


def rates(op: GraphOp, times: Mapping[str, float]) -> dict[str, float]:
    """GFLOP/s by backend."""
    needed = work(op)
    return {backend: needed.flops / (ms * 1e6) for backend, ms in times.items() if needed.flops}


def by_roofline(found: list[Sample], backend: str) -> bool:
    """Whether the roofline gives every time of a type on a backend, so that it has no rate."""
    roof = ROOFS[backend]
    return all(
        abs(log(given["operations"] / (given_rates[backend] * 1e6) / roof.ms(asked(given)))) < LIKE
        for given, given_rates in found
        if backend in given_rates
    )


def asked(given: dict[str, float]) -> OpWork:
    return OpWork(given["operations"], given["bytes"])


def alike(a: dict[str, float], b: dict[str, float]) -> bool:
    """Whether two ops may have one leaf; a backend that one of them lacks does not part them."""
    return all(abs(log(a[k] / b[k])) < SAME for k in a.keys() & b.keys())


def groups(found: list[Sample]) -> list[int]:
    """For each sample the number of its leaf."""
    leaves: list[dict[str, float]] = []
    numbers = []
    for _, given in found:
        same = [number for number, leaf in enumerate(leaves) if alike(leaf, given)]
        if not same:
            leaves.append({})
        numbers.append(same[0] if same else len(leaves) - 1)
        leaves[numbers[-1]] |= given
    return numbers


def grow(found: list[Sample], numbers: list[int]) -> dict:
    """A tree whose leaves each hold one rate; the first feature that parts best is taken."""
    split = None if len({*numbers}) == 1 else best_split(found, numbers)
    if split is None:
        commonest = Counter(numbers).most_common(1)[0][0]
        held = [given for (_, given), n in zip(found, numbers, strict=True) if n == commonest]
        return {"gflops": {k: float(f"{v:.6g}") for given in held for k, v in given.items()}}
    feature, low, high = split
    sides: dict[str, list] = {"below": [], "above": []}
    for sample, number in zip(found, numbers, strict=True):
        sides["below" if sample[0][feature] <= low else "above"].append((sample, number))
    return {"feature": feature, "low": low, "high": high} | {
        side: grow(*map(list, zip(*held, strict=True))) for side, held in sides.items()
    }


def best_split(found: list[Sample], numbers: list[int]) -> tuple[str, float, float] | None:
    best, least = None, entropy(numbers) - 1e-9
    for feature in found[0][0]:
        order = sorted(range(len(found)), key=lambda i: found[i][0][feature])
        for cut in range(1, len(order)):
            low, high = (found[order[i]][0][feature] for i in (cut - 1, cut))
            if low == high:
                continue
            halves = [[numbers[i] for i in part] for part in (order[:cut], order[cut:])]
            left = sum(len(half) * entropy(half) for half in halves) / len(order)
            if left < least - 1e-9:
                best, least = (feature, low, high), left
    return best


def entropy(numbers: list[int]) -> float:
    counts = Counter(numbers).values()
    return -sum(n / len(numbers) * log2(n / len(numbers)) for n in counts)


def trees(seen: dict[str, list[Sample]]) -> dict:
    """By type of op, its tree. A type whose times are all the roofline's has no tree of rates."""
    grown = {}
    for type_, found in sorted(seen.items()):
        most = max(given["bytes"] for given, _ in found)
        plain = {backend for backend in ROOFS if by_roofline(found, backend)}
        found = [
            (given, {k: v for k, v in times.items() if k not in plain}) for given, times in found
        ]
        grown[type_] = {"bytes": most, "root": grow(found, groups(found))}
    return grown


def fit(graphs: Iterable[PublishedGraph], plans: Iterable[NetworkPlan] = ()) -> dict:
    """What `costs.json` says: from graphs of an M4, and from plans of other chips."""
    by_chip = defaultdict(list)
    for plan in plans:
        by_chip[plan.chip].append(plan)
    own = {chip: fit_own(each) for chip, each in by_chip.items()}
    return {"chips": CHIPS, "trees": trees(samples(graphs)), "own": own}


def fit_own(plans: Iterable[NetworkPlan]) -> dict:
    """The trees of one chip's ANE, by plans of networks; `least`: the bytes of the smallest op."""
    found, seen = defaultdict(list), set()
    for plan in plans:
        times = plan.milliseconds(ROOFS[ANE])
        for op, ms, on_ane in zip(plan.ops, times, plan.on_ane, strict=True):
            same = op.type, work(op)
            if on_ane and same not in seen:
                seen.add(same)
                found[op.type].append((features(op), rates(op, {ANE: ms})))
    return {
        type_: tree | {"least": min(given["bytes"] for given, _ in found[type_])}
        for type_, tree in trees(found).items()
    }
