"""The style of the book's figures: readable on a phone, in print and by the colour-blind.

It is matplotlib's default from the import of this module on. Figures are 5.2 inches wide with
12 pt text, so that at a phone's 390 px the text is still 11 px high. They keep a white ground,
which the site inverts in its dark theme, and an exported notebook shows them as they are. Colour
never stands alone: lines differ in marker and dash as well, bars carry their value.

Colours: Okabe and Ito, "Color Universal Design", 2008.
"""

from collections.abc import Sequence
import logging
from typing import Any

# Said once on a new machine, on stderr, where the book's build takes it for a fault.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

from cycler import cycler  # noqa: E402
from IPython.display import Markdown  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402

#: Okabe and Ito's palette without yellow, which is too light for a line on white.
COLORS = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "amber": "#E69F00",
    "black": "#000000",
}
INK, FAINT = "#222222", "#D0D0D0"

STYLE: dict[Any, Any] = {  # names of matplotlib's settings
    "figure.figsize": (5.2, 3.2),  # inches
    "figure.dpi": 200,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "axes.prop_cycle": (
        cycler(color=list(COLORS.values()))
        + cycler(marker=["o", "s", "^", "D", "v", "P", "X"])
        + cycler(linestyle=["-", "--", "-.", ":", "-", "--", "-."])
    ),
}
plt.rcParams.update(STYLE)


def bars(ax: Axes, labels: Sequence[str], values: Sequence[float], fmt: str = "{:,.3g}") -> None:
    """Draw horizontal bars from top to bottom, each with its value written at its end.

    Horizontal, because long names then stay legible on a narrow screen; the value is written out,
    because a reader should not have to measure a bar.
    """
    drawn = ax.barh(range(len(labels)), values, color=COLORS["blue"])
    ax.bar_label(drawn, [fmt.format(value) for value in values], padding=4)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.15)


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> Markdown:
    """A table of texts and numbers."""
    lines = (head, ["---"] * len(head), *rows)
    return Markdown("\n".join(f"| {' | '.join(map(str, row))} |" for row in lines))
