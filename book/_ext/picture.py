"""The README's picture, from the recorded measurements: conversion against the peers."""

from pathlib import Path

from ane_book_pages import records
from ane_book_pages.figures import bars, use_style
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

TARGET = Path(__file__).parents[2] / "book" / "_static" / "result.png"


def main() -> None:
    ours = records.read("measurements/convert.json")
    peers = records.read("measurements/peers.json")["converters"]
    seconds = sorted(run["seconds"] for run in ours["runs"])[len(ours["runs"]) // 2]
    anemll, other = peers["ANEMLL"], peers["0seba/coremlmodels"]
    use_style()
    _, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.2))
    # 0seba writes one package a query length: its second one was not timed, so it has no bar.
    bars(left, ["ane_book", "ANEMLL"], [seconds, anemll["seconds"]], "{:.0f}")
    left.set_title("Seconds to convert, two functions")
    ops = [ours["ops_per_layer"]["decode"], other["ops_per_layer"], anemll["ops_per_layer"]]
    bars(right, ["ane_book", "0seba", "ANEMLL"], ops, "{:.0f}")
    right.set_title("Operations per layer, decode")
    plt.savefig(TARGET, dpi=150)
    print(f"written: {TARGET.name}")


if __name__ == "__main__":
    main()
