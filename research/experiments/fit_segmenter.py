"""Fit the rates of the segmenter's estimator to its published estimates.

    python research/experiments/fit_segmenter.py            # all of them: ane_book/.../costs.json
    python research/experiments/fit_segmenter.py --check    # a half judged by the other, and back

The estimate of an op is its operations over a rate, and the rate one of a few for its type: the
leaves of a decision tree that is not published. Here such a tree is grown from what was seen. A
node keeps the gap between its sides, so that an op in the gap is known to be either. For `--check`
the halves are parted by the hash of the graphs' series (`PublishedGraph.fitted`), and an op whose
type and work the other half has too is not counted.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable
import json
from math import log, log2
from pathlib import Path

from ane_book.book.placement_published import PublishedGraph, judge, read_graphs, sums
from ane_book.evidence.placement import estimator
from ane_book.evidence.placement.estimator import Estimator, OpWork, Roof, features, work
from ane_book.evidence.placement.graph import GraphOp

ROOT = Path(__file__).resolve().parents[2]
ESTIMATES = ROOT / "research/measurements/segmenter_estimates.json"
COSTS = Path(estimator.__file__).with_name("costs.json")
SAME = 0.005  # rates that differ by less are one: estimates come with six digits
LIKE = 0.03  # of the roofline: parameters that the source does not list show in the bytes
TINY = 1e-5  # ms: less teaches nothing; scalar constants, which nobody wrote down, show in it

#: What is stated in the source's log, not fitted: GFLOP/s and GiB/s of each backend.
CPU = {"bnns": {"gflops": 754.543335, "gibs": 56.666664},
       "classic_cpu": {"gflops": 656.0, "gibs": 56.666664}}  # fmt: skip
LOGS = "data/03_compile/opdispatch/aotcost"
CHIPS = {
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


def rates(op: GraphOp, times: dict[str, float]) -> dict[str, float]:
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
    sides = {"below": [], "above": []}
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


def fit(graphs: Iterable[PublishedGraph]) -> dict:
    """What `costs.json` says. A type whose times are all the roofline's has no tree of rates."""
    trees = {}
    for type_, found in sorted(samples(graphs).items()):
        most = max(given["bytes"] for given, _ in found)
        plain = {backend for backend in ROOFS if by_roofline(found, backend)}
        found = [
            (given, {k: v for k, v in times.items() if k not in plain}) for given, times in found
        ]
        trees[type_] = {"bytes": most, "root": grow(found, groups(found))}
    return {"chips": CHIPS, "trees": trees}


def held_out(graphs: list[PublishedGraph]) -> dict[str, dict[str, int]]:
    """How the graphs of each half are met by what the other half taught."""
    halves = {fitted: [g for g in graphs if g.fitted == fitted] for fitted in (True, False)}
    return {
        f"fitted on {len(halves[fitted])}, judged on {len(halves[not fitted])}": judge(
            halves[not fitted],
            Estimator.made_of("m4", fit(halves[fitted])),
            sums(halves[fitted]),
        )
        for fitted in (True, False)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Fit each half, judge on the other.")
    graphs = read_graphs(ESTIMATES)
    if parser.parse_args().check:
        for name, fitted in held_out(graphs).items():
            print(f"{name}: {fitted}")
        return
    COSTS.write_text(json.dumps(fit(graphs), indent=1) + "\n")
    print(f"{COSTS.relative_to(ROOT)}: {len(graphs)} graphs")


if __name__ == "__main__":
    main()
