"""Packages of others by Core AI's runtime beside the executor: the figure of the chapter."""

from collections.abc import Mapping, Sequence

from ane_book_pages.figures import COLORS, INK
from matplotlib.figure import Figure
import matplotlib.pyplot as plt

#: The kind of package, by the test that makes it; from top to bottom.
KINDS = {
    "test_foreign_decoders": "language models",
    "test_foreign_recipe": "language models",
    "test_networks": "other networks",
    "test_foreign_networks": "other networks",
    "test_foreign_encoders": "other networks",
    "test_foreign_compression": "compressed weights",
    "test_foreign_states": "states",
    "test_foreign_edges": "odd programs",
    "test_foreign_control": "loops and branches",
}
LEAST = 1e-8  # where what is equal in every bit is drawn


def by_kind(rows: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """The rows of the record by kind of package."""
    return {
        kind: [row for row in rows if KINDS[row["file"]] == kind]
        for kind in dict.fromkeys(KINDS.values())
    }


def chart(rows: Sequence[Mapping], limit: float) -> Figure:
    """A dot a function: its largest difference in either precision; beside it what is refused."""
    kinds = by_kind(rows)
    figure, ax = plt.subplots(figsize=(5.2, 0.55 * len(kinds) + 1.7))
    looks = {
        "difference": ("single precision", COLORS["blue"], "o", -0.16),
        "half": ("half precision", COLORS["orange"], "^", 0.16),
    }
    for key, (label, color, marker, shift) in looks.items():
        places = [
            (max(LEAST, row[key]), y + shift + 0.05 * (i % 3 - 1))
            for y, of_kind in enumerate(kinds.values())
            for i, row in enumerate(of_kind)
            if key in row and "refused" not in row
        ]
        ax.plot(*zip(*places, strict=True), marker, color=color, alpha=0.6, ms=5, label=label)
    for y, of_kind in enumerate(kinds.values()):
        if all("refused" in row for row in of_kind):
            ax.text(1e-7, y, "all refused by name", va="center", fontsize=10)
    ax.axvline(limit, color=INK, ls="--", lw=1.2)
    ax.set_xscale("log")
    ax.set_xlim(LEAST / 2, 1e-1)
    ax.set_xticks([1e-8, 1e-6, 1e-4, 1e-2], ["0", "$10^{-6}$", "$10^{-4}$", "$10^{-2}$"])
    ax.minorticks_off()
    names = [
        f"{kind}\n{sum('refused' not in row for row in of_kind)} of {len(of_kind)} carried"
        for kind, of_kind in kinds.items()
    ]
    ax.set_yticks(range(len(kinds)), names, fontsize=10)
    ax.set_ylim(len(kinds) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("largest difference, of the largest number")
    ax.legend(loc="lower center", bbox_to_anchor=(0.35, 1), ncols=2, handletextpad=0.1)
    return figure
