"""Graphs and networks whose estimates and choices are published; scripts as modules."""

import importlib.util
from pathlib import Path

from ane_book_pages.segmenter.networks import read_plans
from ane_book_pages.segmenter.published import read_graphs

ROOT = Path(__file__).resolve().parents[2]
ESTIMATES = ROOT / "research/measurements/segmenter_estimates.json"
GRAPHS = read_graphs(ESTIMATES)
PLANS = read_plans(ROOT / "research/measurements/network_plans.json")


def script(name: str):
    """A script of research/experiments as a module."""
    path = ROOT / f"research/experiments/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
