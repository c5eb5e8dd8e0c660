"""Draw one decoder layer of the book, with the shape of what goes over each arrow.

    figure = layer()

`STEPS` is what is drawn: a test compares its shapes with those of a converted model.
"""

from itertools import pairwise

from ane_book_pages.figures.diagrams import arrow, box, canvas, down, elbow, note
from matplotlib.figure import Figure

#: (what happens, colour of its box, shape of what leaves it), from top to bottom. The colours:
#: blue a convolution with its weights, green a product without weights, grey all else.
STEPS = (
    ("norm", "none", "(1, C, 1, T)"),
    ("conv: q, k, v", "blue", "(1, (H+2K)·D, 1, T)"),
    ("heads apart", "none", "(1, H+K, T, D)"),
    ("rotate q and k", "none", "(1, K, G·T, D)"),
    ("matmul with keys", "green", "(1, K, G·T, S+T)"),
    ("mask, softmax", "none", "(1, K, G·T, S+T)"),
    ("matmul with values", "green", "(1, K, G·T, D)"),
    ("heads together", "none", "(1, H·D, 1, T)"),
    ("conv: output", "blue", "(1, C, 1, T)"),
    ("add", "none", "(1, C, 1, T)"),
    ("norm", "none", "(1, C, 1, T)"),
    ("conv: gate and up", "blue", "(1, 2F, 1, T)"),
    ("silu(gate) · up", "none", "(1, F, 1, T)"),
    ("conv: down", "blue", "(1, C, 1, T)"),
    ("add", "none", "(1, C, 1, T)"),
)
#: What comes from the side, by the step that it goes into.
ASIDE = {
    "rotate q and k": "cos, sin\n(1, 1, T, D)",
    "matmul with keys": "keys (1, K, S, D)\nnew (1, K, T, D)",
    "mask, softmax": "mask\n(1, 1, G·T, S+T)",
    "matmul with values": "values (1, K, S, D)\nnew (1, K, T, D)",
}
STEP, HEIGHT, LEFT, WIDTH = 1.62, 0.86, 0.9, 3.5  # units of the sheet


def layer() -> Figure:
    """One layer of T tokens over a cache of S positions, in the form of `ane_book.models`."""
    rows = STEP * (len(STEPS) + 0.5) + 0.1
    figure, ax = canvas(0.345 * rows, rows)
    middle = LEFT + WIDTH / 2
    places = [
        box(ax, LEFT, STEP * (i + 0.5), WIDTH, HEIGHT, text, kind)
        for i, (text, kind, _) in enumerate(STEPS)
    ]
    arrow(ax, (middle, 0.05), (middle, places[0][1]))
    note(ax, middle + 0.2, 0.4, "hidden (1, C, 1, T)")
    for above, below in pairwise(places):
        down(ax, above, below)
    end = places[-1][1] + HEIGHT
    arrow(ax, (middle, end), (middle, end + STEP - HEIGHT))
    for place, (_, _, shape) in zip(places, STEPS, strict=True):
        text = f"hidden_out {shape}" if place is places[-1] else shape
        note(ax, middle + 0.2, place[1] + (STEP + HEIGHT) / 2, text)
    for place, (text, _, _) in zip(places, STEPS, strict=True):
        if text in ASIDE:
            beside(ax, place, ASIDE[text])
    starts = [0.15, places[9][1] + HEIGHT + 0.1]  # what each sum adds
    for start, add in zip(starts, (places[9], places[14]), strict=True):
        y = add[1] + HEIGHT / 2
        elbow(ax, [(middle, start), (0.35, start), (0.35, y), (LEFT, y)])
    return figure


def beside(ax, place: tuple[float, float, float, float], text: str) -> None:
    """Draw what comes into a box from the right, in orange: from the host or the cache."""
    tall, y = 1.3, place[1] + HEIGHT / 2
    box(ax, 6.75, y - tall / 2, 3.2, tall, text, "orange")
    arrow(ax, (6.75, y), (LEFT + WIDTH, y))
