"""Draw how Core ML chooses a unit for each op: two lanes, and the paths through them with prices.

Kept apart from `diagrams.py`, since it draws from estimates and not from a fixed layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ane_book_pages.figures.diagrams import INK, TINTS, box, canvas, note
from ane_book_pages.figures.style import COLORS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mlprogram.ane.placement.path import ANE, LAUNCH, OUTPUT, SWITCH, Estimates, cost

PANEL = 7.2  # rows of one graph
CHOSEN, OTHER = "blue", "orange"  # the cheapest path fills its cells, the next has dashed edges


@dataclass(frozen=True)
class Lanes:
    """A graph to draw.

    names: one for each op, in order. estimates: ms by backend, as of `path.shortest`. paths: two
    assignments of a backend to each op, each with what it is called; the cheapest is the first.
    """

    title: str
    names: Sequence[str]
    estimates: Estimates
    paths: dict[str, Sequence[str]]


def lanes(graphs: Sequence[Lanes]) -> Figure:
    """Draw each graph as a panel: its ops in an engine's lane and a CPU's, and two paths."""
    figure, ax = canvas(0.42 * PANEL * len(graphs), PANEL * len(graphs))
    for i, graph in enumerate(graphs):
        _panel(ax, graph, PANEL * i)
    return figure


def _panel(ax: Axes, graph: Lanes, top: float) -> None:
    heights = {True: top + 2.2, False: top + 4.1}  # of the two lanes: on the engine?
    xs = [1.75]
    for names in pairwise(graph.names):  # a long name would touch its neighbours
        xs.append(xs[-1] + (1.16 if max(map(len, names)) > 4 else 0.87))
    note(ax, 0.0, top + 0.4, graph.title, weight="bold")
    note(ax, 0.0, heights[True], "engine")
    note(ax, 0.0, heights[False], "CPU")
    called = [*graph.paths]
    for row, color in enumerate((CHOSEN, OTHER)):
        backends, y = graph.paths[called[row]], top + 5.6 + 0.75 * row
        _prices(ax, xs, backends, heights, COLORS[color])
        _cell(ax, 0.6, y, "", chosen=color == CHOSEN, other=color == OTHER, height=0.44)
        note(ax, 1.35, y, f"{called[row]}: {1e3 * cost(graph.estimates, backends):.0f} µs")
    ways = zip(*graph.paths.values(), strict=True)
    for x, name, times, way in zip(xs, graph.names, graph.estimates, ways, strict=True):
        for on, height in heights.items():
            ms = times.get(ANE) if on else min(t for unit, t in times.items() if unit != ANE)
            if ms is None:  # the unit does not take the op
                note(ax, x, height, "✗", ha="center")
                continue
            chosen, other = ((unit == ANE) == on for unit in way)
            _cell(ax, x, height, f"{1e3 * ms:.{0 if ms > 0.01 else 1}f}", chosen, other)
        note(ax, x, heights[False] + 0.7, name, ha="center")


def _cell(
    ax: Axes, x: float, y: float, text: str, chosen: bool, other: bool, height: float = 0.64
) -> None:
    """An estimate in µs, in the look of the paths that go through it."""
    box(ax, x - 0.38, y - height / 2, 0.76, height, text)
    edge = COLORS[OTHER] if other else COLORS[CHOSEN] if chosen else INK
    ax.patches[-1].set(
        facecolor=TINTS[CHOSEN] if chosen else "white", edgecolor=edge, zorder=3,
        linewidth=2.2 if chosen or other else 0.8, linestyle=(0, (2, 0.8)) if other else "-",
    )  # fmt: skip
    ax.texts[-1].set_zorder(4)


def _prices(ax: Axes, xs: list[float], backends: Sequence[str], heights: dict, color: str) -> None:
    """What a path pays besides its ops, each price in µs where it is paid."""
    look = {"color": color, "ha": "center"}
    above, between = heights[True] - 0.75, (heights[True] + heights[False]) / 2
    for i, backend in enumerate(backends):
        before = backends[i - 1] if i else None
        if backend == ANE != before:
            note(ax, xs[i], above, f"launch {1e3 * LAUNCH:.0f}", **look)
        if before is not None and backend != before:
            ends = [heights[unit == ANE] for unit in (before, backend)]
            ax.plot(xs[i - 1 : i + 1], ends, color=color, linestyle="--", marker="", zorder=2)
            side, shift = ("left", 0.2) if backend == ANE else ("right", -0.2)
            at, switch = (xs[i - 1] + xs[i]) / 2 + shift, f"switch {1e3 * SWITCH:.0f}"
            note(ax, at, between, switch, color=color, ha=side)
    if backends[-1] == ANE:
        note(ax, xs[-1] + 0.4, above, f"output {1e3 * OUTPUT:.0f}", **{**look, "ha": "right"})
