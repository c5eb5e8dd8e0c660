"""Draw the book's diagrams with matplotlib.

Each function draws one figure in the look of `style.py`: at most 5.2 inches wide, text of 11
points or more, a white ground, so that it is legible at a phone's 390 px and in the dark.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ane_book_pages.figures.style import COLORS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
import matplotlib.pyplot as plt

INK, PALE = "#222222", "#F2F2F2"
TINTS = {"blue": "#D6E8F5", "orange": "#FBE3D3", "green": "#D3EFE6", "none": PALE}
EDGES = {"blue": COLORS["blue"], "orange": COLORS["orange"], "green": COLORS["green"], "none": INK}


def canvas(height: float, rows: float, columns: float = 10.0) -> tuple[Figure, Axes]:
    """A figure 5.2 inches wide with (0, 0) at the top left and its own units."""
    figure, ax = plt.subplots(figsize=(5.2, height))
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    ax.axis("off")
    return figure, ax


def box(
    ax: Axes, x: float, y: float, w: float, h: float, text: str = "", kind: str = "none", size=11
) -> tuple[float, float, float, float]:
    """Draw a box with centred text; return its position and size, for arrows."""
    shape = FancyBboxPatch(
        (x, y), w, h, boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=TINTS[kind], edgecolor=EDGES[kind], linewidth=1.3,
    )  # fmt: skip
    ax.add_patch(shape)
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=size, color=INK)
    return x, y, w, h


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
    """Draw an arrow between two points."""
    look = {"color": INK, "linewidth": 1.4, "arrowstyle": "-|>", "mutation_scale": 13, **look}
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=1, shrinkB=1, **look))


def down(ax: Axes, above: tuple, below: tuple) -> None:
    """Draw an arrow from a box to the one below it."""
    x = max(above[0], below[0]) + min(above[2], below[2]) / 2
    arrow(ax, (x, above[1] + above[3]), (x, below[1]))


def elbow(ax: Axes, points: list[tuple[float, float]]) -> None:
    """Draw an arrow along a line with corners."""
    *path, last = points
    ax.plot(*zip(*path, strict=True), color=INK, linewidth=1.4, linestyle="-", marker="")
    arrow(ax, path[-1], last)


def note(ax: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Draw text without a box."""
    look = {"ha": "left", "va": "center", "fontsize": 11, "color": INK, **look}
    ax.text(x, y, text, **look)


def frame(ax: Axes, corner: tuple[float, float], w: float, h: float) -> None:
    """Draw a dashed frame."""
    dashed = Rectangle(corner, w, h, fill=False, edgecolor=INK, linestyle="--", linewidth=1.2)
    ax.add_patch(dashed)


def cells(ax: Axes, x: float, y: float, w: float, h: float, kinds: Sequence[str]) -> None:
    """Draw a row of cells."""
    for i, kind in enumerate(kinds):
        tint, edge = TINTS[kind], EDGES[kind]
        ax.add_patch(Rectangle((x + i * w, y), w, h, facecolor=tint, edgecolor=edge, linewidth=0.9))


def way() -> Figure:
    """From a weight file to a token: what converts, what checks, what runs."""
    figure, ax = canvas(5.4, 11.6)
    steps = [
        ("weights: GGUF, safetensors, ONNX", "none"),
        ("the model in PyTorch, ANE layout", "none"),
        ("one block, lowered by coremltools", "blue"),
        ("stamped for every layer, linked", "blue"),
        ("a bundle: packages, tokenizer, manifest", "blue"),
    ]
    places = [box(ax, 0.1, 0.1 + 1.55 * i, 6.6, 1.0, *step) for i, step in enumerate(steps)]
    for above, below in pairwise(places):
        down(ax, above, below)
    here = box(ax, 0.1, 8.1, 3.1, 1.3, "executor\nany machine", "green")
    there = box(ax, 3.6, 8.1, 3.1, 1.3, "Core ML\na Mac, a phone", "orange")
    for place in (here, there):
        middle = place[0] + place[2] / 2
        arrow(ax, (middle, 7.3), (middle, place[1]))
        arrow(ax, (middle, 9.4), (middle, 10.3))
    box(ax, 0.1, 10.3, 6.6, 1.0, "tokens, vectors, labels", "none")
    checks = [(2.15, "same numbers?\nPyTorch says"), (6.8, "laws of the engine\nplacement, cost"),
              (8.75, "same tokens?\nresident?")]  # fmt: skip
    for y, text in checks:
        note(ax, 7.0, y, text, color=COLORS["orange"])
    return figure


def padding(elements: int = 32) -> Figure:
    """The memory of one token's hidden state, (1, C, 1, 1), and of T tokens', (1, C, 1, T).

    elements: how many fp16 numbers are in the 64 bytes to which the last axis is padded.
    """
    figure, ax = canvas(3.2, 8.4)
    width = 6.4 / elements
    for top, tokens, text in ((0.9, 1, "T = 1"), (5.3, elements, f"T = {elements}")):
        note(ax, 0.0, top - 0.45, f"(1, C, 1, T), {text}", weight="bold")
        for row in range(4):
            kinds = ["blue"] * tokens + ["none"] * (elements - tokens)
            cells(ax, 1.7, top + 0.62 * row, width, 0.5, kinds)
            note(ax, 0.0, top + 0.62 * row + 0.25, f"channel {row}" if row < 3 else "...")
        used = f"1 of {elements}\nused" if tokens == 1 else "all used"
        note(ax, 8.3, top + 1.1, used, color=COLORS["orange"])
    arrow(ax, (1.7, 3.75), (8.1, 3.75), arrowstyle="<|-|>")
    note(ax, 4.9, 4.1, "64 bytes", ha="center")
    return figure


def stream() -> Figure:
    """A 1x1 convolution on the engine: weights stay at the multipliers, tokens stream past."""
    figure, ax = canvas(3.4, 8.0)
    C, F, T = 4, 3, 5
    note(ax, 1.4, 0.4, "x (1, C, 1, T)", ha="center", weight="bold")
    note(ax, 5.1, 0.4, "weights (F, C)", ha="center", weight="bold")
    note(ax, 8.7, 0.4, "y (1, F, 1, T)", ha="center", weight="bold")
    for c in range(C):
        cells(ax, 0.15, 1.9 + 0.6 * c, 0.5, 0.6, [*["none"] * (T - 1), "orange"])
    box(ax, 3.7, 1.2, 2.8, 3.8, "", "green")
    for f in range(F):
        cells(ax, 4.1, 1.5 + 1.1 * f, 0.5, 0.6, ["blue"] * C)
        note(ax, 6.25, 1.8 + 1.1 * f, "\u03a3", ha="center")
        cells(ax, 7.45, 1.5 + 1.1 * f, 0.5, 0.6, ["orange", *["none"] * (T - 1)])
        arrow(ax, (6.5, 1.8 + 1.1 * f), (7.45, 1.8 + 1.1 * f))
    arrow(ax, (2.65, 3.1), (3.7, 3.1))
    arrow(ax, (5.1, 6.2), (5.1, 5.0))
    note(ax, 1.4, 4.9, "tokens stream past,\na column at a time", ha="center")
    note(ax, 5.1, 6.6, "loaded once for all T tokens", ha="center", color=COLORS["blue"])
    note(ax, 5.1, 7.5, "each row of multipliers sums over the C channels", ha="center")
    note(ax, 8.7, 5.3, "a column\nof results", ha="center")
    return figure


def blocks(calls: Sequence[str]) -> Figure:
    """Calls of `verify` in blocks: each call is a string with a letter, a key of `columns`, for
    each column."""
    columns = {
        "n": ("blue", "●", "the text's last token"),
        "r": ("green", "✓", "a right guess"),
        "w": ("orange", "✗", "a guess not taken"),
        "a": ("none", "", "given again"),
    }
    figure, ax = canvas(0.5 * len(calls) + 1.1, 1.2 * len(calls) + 2.7)
    for i, row in enumerate(calls):
        y = 0.2 + 1.2 * i
        note(ax, 0.0, y + 0.4, f"call {i + 1}")
        cells(ax, 1.6, y, 1.0, 0.8, [columns[letter][0] for letter in row])
        for at, letter in enumerate(row):
            note(ax, 2.1 + at, y + 0.4, columns[letter][1], ha="center")
    for i, (kind, sign, text) in enumerate(columns.values()):
        x, y = 0.1 + 5.0 * (i % 2), 0.5 + 1.2 * (len(calls) + i // 2)
        cells(ax, x, y, 0.8, 0.7, [kind])
        note(ax, x + 0.4, y + 0.35, sign, ha="center")
        note(ax, x + 1.0, y + 0.35, text)
    return figure


def calls() -> Figure:
    """A token's way: what the host computes, and what the packages compute."""
    figure, ax = canvas(5.6, 12.9)
    for x, name in ((2.7, "the host, on the CPU"), (7.6, "the programs")):
        note(ax, x, 0.35, name, ha="center", weight="bold")
    written = box(ax, 0.7, 0.9, 4.0, 1.3, "prompt: chat template,\ntokenizer", "orange")
    ids = box(ax, 0.7, 3.0, 4.0, 1.0, "token ids, position", "none")
    made = box(ax, 0.7, 4.8, 4.0, 2.2, "rows of the embedding\nrotary tables\nmask", "orange")
    layers = box(ax, 5.4, 4.8, 4.4, 1.3, "layers, one package\nafter the other", "blue")
    head = box(ax, 5.4, 8.4, 4.4, 1.3, "head", "blue")
    box(ax, 5.4, 3.0, 4.4, 1.0, "state: keys, values", "blue")
    sampled = box(ax, 0.7, 8.4, 4.0, 1.3, "sampler: the likeliest,\nor one drawn", "orange")
    text = box(ax, 0.7, 11.4, 4.0, 1.3, "tokens to text,\nwhole characters only", "orange")
    for upper, lower in ((written, ids), (ids, made), (layers, head), (sampled, text)):
        down(ax, upper, lower)
    arrow(ax, (7.6, 4.0), (7.6, 4.8), arrowstyle="<|-|>")
    arrow(ax, (made[0] + made[2], 5.45), (layers[0], 5.45))
    arrow(ax, (head[0], 9.05), (sampled[0] + sampled[2], 9.05))
    elbow(ax, [(0.7, 9.05), (0.2, 9.05), (0.2, 3.5), (0.7, 3.5)])
    note(ax, 7.8, 7.25, "hidden_out")
    note(ax, 7.6, 10.3, "logits_0, logits_1, ...", ha="center")
    note(ax, 0.4, 7.7, "next token id")
    return figure


def experts(E: int, taken: Sequence[int]) -> Figure:
    """One token's mixture twice: all experts in a package, and only those taken, as packages that
    the host calls.

    E: experts of the layer, a multiple of four. taken: the indices of those that the token chose.
    """
    figure, ax = canvas(4.0, 9.0)
    apart = ["blue" if i in taken else "none" for i in range(E)]
    more = len(taken)
    for x, name, kinds, ends, said in (
        (0.1, "in the graph", ["blue"] * E, [(0.8, 7.9)], f"1 call reads {E}"),
        (5.2, "apart", apart, [(0.8, 2.3), (6.4, 7.9)], f"{more} more calls read {more}"),
    ):
        note(ax, x + 2.3, 0.35, name, ha="center", weight="bold")
        for top, bottom in ends:
            frame(ax, (x, top), 4.6, bottom - top)
        box(ax, x + 0.4, 1.1, 3.8, 0.9, "router, gates")
        for row in range(4):
            part = kinds[row * E // 4 : (row + 1) * E // 4]
            cells(ax, x + 0.4, 3.2 + 0.55 * row, 3.8 * 4 / E, 0.5, part)
        box(ax, x + 0.4, 6.7, 3.8, 0.9, "what follows")
        arrow(ax, (x + 2.3, 2.0), (x + 2.3, 3.2))
        arrow(ax, (x + 2.3, 5.35), (x + 2.3, 6.7))
        note(ax, x + 2.3, 8.4, said, ha="center", color=COLORS["orange"])
    for y, text in ((2.7, "host calls"), (5.9, "host adds")):
        note(ax, 7.7, y, text, color=COLORS["orange"])
    return figure


#: Llama's block from top to bottom: (what happens, colour of its box, what others do there).
#: Where a box has no text, Llama does nothing.
BLOCK = (
    ("norm", "none", "OLMo 2 and 3, EXAONE 4: none"),
    ("q, k, v", "blue", "Qwen2.5, GLM 4: with a bias"),
    ("", "none", "norm of q and k: Qwen3, Gemma,\nOLMo 2 and 3, EXAONE 4"),
    ("rotate q and k", "none", "Phi-4-mini, GLM 4: a part of each\nSmolLM3: three layers in four"),
    ("", "none", "norm of q and k: Hy-MT"),
    ("masked attention", "green", "Mistral: a window; in some layers:\nGemma, OLMo 3, Ministral"),
    ("output", "blue", "the frame: not attention in most\nlayers of LFM2, Qwen3.5, Granite 4"),
    ("", "none", "norm: Gemma, GLM 4, OLMo 2 and\n3, EXAONE 4; Granite: a factor"),
    ("add", "none", ""),
    ("norm", "none", "OLMo 2 and 3, EXAONE 4: none"),
    ("gate, up, down", "blue", "Gemma: gelu instead of silu\nQwen3-MoE, LFM2-MoE: experts"),
    ("", "none", "as after attention"),
    ("add", "none", ""),
)
ATTENTION = 1, 6  # its first and last row


def families() -> Figure:
    """Llama's block, with what other families change in it."""
    pitch, height, left, width = 1.4, 0.8, 0.9, 2.9  # units of the sheet
    rows = pitch * len(BLOCK) + 1.0
    figure, ax = canvas(0.36 * rows, rows)
    middle, right = left + width / 2, left + width
    tops = [0.9 + pitch * i for i in range(len(BLOCK))]
    first, last = (tops[row] for row in ATTENTION)
    frame(ax, (left - 0.25, first - 0.25), width + 0.5, last - first + height + 0.5)
    arrow(ax, (middle, 0.0), (middle, rows))
    for y, (text, kind, change) in zip(tops, BLOCK, strict=True):
        if text:
            box(ax, left, y, width, height, text, kind)
            arrow(ax, (middle, y - 0.1), (middle, y))
        if change:
            path = [right if text else middle, right + 0.45], [y + height / 2] * 2
            ax.plot(*path, color=COLORS["orange"], linestyle=":", linewidth=1.4, marker="")
            note(ax, right + 0.55, y + height / 2, change, color=COLORS["orange"])
    adds = [y for y, (text, _, _) in zip(tops, BLOCK, strict=True) if text == "add"]
    for start, y in zip((0.2, adds[0] + height + 0.2), adds, strict=True):
        add = y + height / 2
        elbow(ax, [(middle, start), (0.2, start), (0.2, add), (left, add)])
    return figure


def package(files: Sequence[tuple[str, str]]) -> Figure:
    """The files of an .mlpackage: (path, description), the outermost first."""
    figure, ax = canvas(0.62 * len(files) + 0.3, len(files) + 0.2)
    for i, (path, text) in enumerate(files):
        depth = path.count("/")
        box(ax, 0.05 + 0.35 * depth, i + 0.1, 5.0 - 0.35 * depth, 0.8, path.rsplit("/", 1)[-1],
            "blue" if text else "none")  # fmt: skip
        note(ax, 5.3, i + 0.5, text)
    return figure


def stamping(layers: int) -> Figure:
    """One lowered block with holes for weights, copied for each layer."""
    figure, ax = canvas(3.6, 8.4)
    block = box(ax, 0.1, 1.4, 2.6, 2.6, "one block\nlowered,\nwith holes\nfor weights", "blue")
    shown = [0, 1, 2, layers - 1]
    for i, layer in enumerate(shown):
        y = 0.3 + 1.35 * i + (0.55 if i == 3 else 0)
        box(ax, 4.3, y, 2.3, 1.0, f"layer {layer}", "blue")
        arrow(ax, (2.7, 2.7), (4.3, y + 0.5))
        arrow(ax, (7.9, y + 0.5), (6.6, y + 0.5), color=COLORS["orange"])
    note(ax, 5.45, 4.42, "...", ha="center", va="center")
    ax.add_patch(Rectangle((7.9, 0.2), 2.0, 6.0, facecolor=TINTS["orange"],
                           edgecolor=EDGES["orange"], linewidth=1.3))  # fmt: skip
    note(ax, 8.9, 3.2, "weight\nfile,\na stretch\nfor each\nlayer", ha="center")
    note(ax, block[0], 4.6, "coremltools:\nonce per function")
    note(ax, 4.3, 7.3, "the linker: names, states, positions,\noffsets into the weight file")
    return figure


def shards(parts: Sequence[tuple[str, int]], limit: int) -> Figure:
    """A model cut into packages: (name, bytes) of each, in the order of the calls."""
    figure, ax = canvas(0.45 * len(parts) + 0.9, len(parts) + 1.8)
    most = max(limit, *(size for _, size in parts))
    for i, (name, size) in enumerate(parts):
        kind = "orange" if name.startswith("head") else "blue"
        width = max(6.0 * size / most, 0.25)
        box(ax, 3.3, i + 0.15, width, 0.7, "", kind)
        note(ax, 3.1, i + 0.5, name, ha="right")
        inside = width > 2  # units of the sheet
        x = 3.5 if inside else 3.45 + width
        note(ax, x, i + 0.5, f"{size / 1e6:,.0f} MB")
        if i:
            arrow(ax, (0.2, i - 0.3), (0.2, i + 0.3))
    x = 3.3 + 6.0 * limit / most
    ax.plot([x, x], [0, len(parts)], color=INK, linestyle=":", linewidth=1.4, marker="")
    note(ax, x, len(parts) + 0.4, f"limit {limit / 1e6:,.0f} MB", ha="right")
    note(ax, 0.0, len(parts) + 1.3, "a hidden state goes from each program to the next")
    return figure


def residency() -> Figure:
    """The conditions for calling a model resident on the engine, in the order of
    `mlprogram.ane.mac.verdict`."""
    return _questions([
        ("the process ends by itself", "crashed, hung, memory"),
        ("the engine's compiler takes it", "refused"),
        ("the executor's numbers, finite", "numbers"),
        ("planned on the engine", "elsewhere"),
        ("results or speed of its own", "silent"),
        ("still so, 500 calls later", "leaking, drifting"),
    ], "resident")  # fmt: skip


def faults() -> Figure:
    """Is it the bits? What to compare, in which order, and what is wrong where it fails."""
    return _questions([
        ("all bits: the model agrees\nwith another's code",
         "a name, a norm,\na rotation misread"),
        ("fewer bits: each matrix is\noff by what is predicted",
         "scales of another\nrow, axis, block"),
        ("each row, and each expert\nby itself, too",
         "a row of zeros, a scale\ntoo small, a quiet expert"),
    ], "it is the bits", height=1.4)  # fmt: skip


def _questions(steps: Sequence[tuple[str, str]], last: str, height: float = 0.95) -> Figure:
    """Boxes from top to bottom, each with what stands at its right where it does not hold, and
    what is known where all hold. height: of a box, for one line of text or two."""
    pitch = height + 0.5
    figure, ax = canvas(0.48 * (pitch * len(steps) + 0.9), pitch * len(steps) + 0.9)
    places = [box(ax, 0.1, 0.1 + pitch * i, 5.4, height, text, "blue")
              for i, (text, _) in enumerate(steps)]  # fmt: skip
    for above, below in pairwise(places):
        down(ax, above, below)
    for place, (_, verdict) in zip(places, steps, strict=True):
        y = place[1] + height / 2
        arrow(ax, (5.5, y), (6.2, y), color=COLORS["orange"])
        note(ax, 6.3, y, verdict, color=COLORS["orange"])
    x, y, w, h = places[-1]
    arrow(ax, (x + w / 2, y + h), (x + w / 2, y + h + 0.5))
    note(ax, x + w / 2, y + h + 0.8, last, ha="center", weight="bold", color=COLORS["green"])
    return figure


def engine(cores: int, products: int, operand: int, weights: int, bits: int) -> Figure:
    """The data flow of a convolution: from memory, through the engine's own memory, its array of
    multipliers and its elementwise unit, and back.

    products: of a core in a cycle. operand: bytes that fit on the engine. weights: bytes that fit
    in a core. bits: of a sum.
    """
    figure, ax = canvas(6.2, 12.4)
    frame(ax, (0.1, 2.9), 9.8, 9.4)
    note(ax, 4.95, 3.2, "the engine", ha="center", weight="bold")
    memory = box(ax, 0.1, 0.1, 9.8, 1.1, "memory, shared with CPU and GPU", "orange")
    waiting = box(ax, 0.4, 3.7, 4.1, 1.4, f"weights: {weights >> 10} KiB\na core can stay", "blue")
    own = box(ax, 5.1, 3.7, 4.1, 1.4, f"operands of up to\n{operand >> 20} MiB can stay", "blue")
    bottom = memory[1] + memory[3]
    arrow(ax, (2.45, bottom), (2.45, 3.7))
    arrow(ax, (7.15, bottom), (7.15, 3.7), arrowstyle="<|-|>")
    note(ax, 2.65, 1.95, "weights,\nin each call", color=COLORS["orange"])
    note(ax, 7.35, 1.95, "activations", color=COLORS["orange"])
    box(ax, 0.4, 6.0, 8.8, 1.9, "", "green")
    note(ax, 4.8, 6.4, f"{cores} cores, each {products} products a cycle", ha="center")
    cells(ax, 0.8, 6.9, 8.0 / cores, 0.7, ["blue"] * cores)
    for above in (waiting, own):
        arrow(ax, (above[0] + above[2] / 2, 5.1), (above[0] + above[2] / 2, 6.0))
    box(ax, 0.4, 8.8, 4.1, 1.3, f"sums of {bits} bits", "green")
    box(ax, 5.1, 8.8, 4.1, 1.3, "rounded to fp16", "green")
    arrow(ax, (2.45, 7.9), (2.45, 8.8))
    arrow(ax, (4.5, 9.45), (5.1, 9.45))
    box(ax, 0.4, 10.7, 8.8, 1.3, "elementwise unit: norm, softmax, mask, sum", "green")
    arrow(ax, (7.15, 10.1), (7.15, 10.7))
    elbow(ax, [(9.2, 11.35), (9.6, 11.35), (9.6, 4.4), (9.2, 4.4)])
    return figure
