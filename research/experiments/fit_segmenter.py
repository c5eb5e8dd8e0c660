"""Fit the rates of the segmenter's estimator to its published estimates: `costs.json`.

    python research/experiments/fit_segmenter.py

How, and how well it does on what it was not fitted to: `book/ane_book_pages/segmenter/`, and
`research/experiments/judge_placement.py`.
"""

import json
from pathlib import Path

from ane_book_pages.segmenter.fitting import fit
from ane_book_pages.segmenter.networks import read_plans
from ane_book_pages.segmenter.published import read_graphs
from mlprogram.ane.placement import estimator

ROOT = Path(__file__).resolve().parents[2]
ESTIMATES = ROOT / "research/measurements/segmenter_estimates.json"
PLANS = ROOT / "research/measurements/network_plans.json"
COSTS = Path(estimator.__file__).with_name("costs.json")


def main() -> None:
    graphs, plans = read_graphs(ESTIMATES), read_plans(PLANS)
    COSTS.write_text(json.dumps(fit(graphs, plans), indent=1) + "\n")
    print(f"{COSTS.relative_to(ROOT)}: {len(graphs)} graphs, {len(plans)} plans of networks")


if __name__ == "__main__":
    main()
