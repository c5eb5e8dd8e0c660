"""Draw how Core ML chooses a unit for each op: two lanes, and the paths through them with prices.

Kept apart from `diagrams.py`, since it draws from estimates and not from a fixed layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ane_book_pages.diagrams import TINTS, box, canvas, note
from ane_book_pages.figures import COLORS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mlprogram.ane.placement.path import ANE, LAUNCH, OUTPUT, SWITCH, Estimates, cost

PANEL = 7.6  # rows of one graph
LINES = (("blue", "-"), ("orange", "--"))  # of the cheapest path, and of the next


@dataclass(frozen=True)
class Lanes:
    """A graph to draw.

    names: one for each op, in order. estimates: ms by backend, as of `path.shortest`. paths: two
    assignments of a backend to each op, each with what it is called; the first is drawn first.
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
    xs = [1.75 + 0.92 * i for i in range(len(graph.names))]
    note(ax, 0.0, top + 0.4, graph.title, weight="bold")
    note(ax, 0.0, heights[True], "engine")
    note(ax, 0.0, heights[False], "CPU")
    for style, (called, backends) in zip(LINES, graph.paths.items(), strict=True):
        aside = 0.26 * LINES.index(style) - 0.13  # so that two paths in one lane are both seen
        _path(ax, xs, [heights[backend == ANE] + aside for backend in backends], style)
        _prices(ax, xs, backends, heights, COLORS[style[0]])
        total = 1e3 * cost(graph.estimates, backends)
        row = top + 5.95 + 0.75 * LINES.index(style)
        ax.plot([0.1, 1.1], [row, row], color=COLORS[style[0]], linestyle=style[1], marker="")
        note(ax, 1.35, row, f"{called}: {total:.0f} µs")
    for x, name, times in zip(xs, graph.names, graph.estimates, strict=True):
        for on, height in heights.items():
            _time(ax, x, height, times.get(ANE) if on else _least_of_cpu(times))
        low = len(name) > 4  # a long name would touch its neighbours
        note(ax, x, heights[False] + (1.15 if low else 0.7), name, ha="center")


def _least_of_cpu(times) -> float:
    return min(ms for backend, ms in times.items() if backend != ANE)


def _time(ax: Axes, x: float, y: float, ms: float | None) -> None:
    """A cell with an estimate in µs; a cross where the unit does not take the op."""
    if ms is None:
        note(ax, x, y, "✗", ha="center")
        return
    text = f"{1e3 * ms:.0f}" if ms > 0.01 else f"{1e3 * ms:.1f}"
    box(ax, x - 0.38, y - 0.32, 0.76, 0.64, text)
    ax.patches[-1].set(facecolor=TINTS["none"], zorder=3)
    ax.texts[-1].set_zorder(4)


def _path(ax: Axes, xs: list[float], ys: list[float], style: tuple[str, str]) -> None:
    color, line = style
    ax.plot(xs, ys, color=COLORS[color], linestyle=line, marker="", linewidth=3, zorder=2)


def _prices(ax: Axes, xs: list[float], backends: Sequence[str], heights: dict, color: str) -> None:
    """What a path pays besides its ops, each price in µs where it is paid."""
    look = {"color": color, "ha": "center"}
    above, between = heights[True] - 0.75, (heights[True] + heights[False]) / 2
    for i, backend in enumerate(backends):
        before = backends[i - 1] if i else None
        if backend == ANE != before:
            note(ax, xs[i], above, f"launch {1e3 * LAUNCH:.0f}", **look)
        if before is not None and backend != before:
            side, shift = ("left", -0.2) if backend == ANE else ("right", -0.7)
            switch = f"switch {1e3 * SWITCH:.0f}"
            note(ax, xs[i] + shift, between, switch, color=color, ha=side)
    if backends[-1] == ANE:
        note(ax, xs[-1] + 0.4, above, f"output {1e3 * OUTPUT:.0f}", **{**look, "ha": "right"})
