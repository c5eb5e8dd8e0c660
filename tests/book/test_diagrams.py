"""The book's diagrams: text stays on the sheet, apart from other text, and large enough to read."""

from itertools import combinations

from _tiny import TINY, tiny_model
from ane_book.models import find, read_config
from ane_book_pages import figures
from ane_book_pages.figures.diagrams import BLOCK
import matplotlib
import pytest
from torch import nn

matplotlib.use("Agg")

import matplotlib.pyplot as plt

FILES = [("m.mlpackage", ""), ("m.mlpackage/Manifest.json", "where the model is"),
         ("m.mlpackage/Data/com.apple.CoreML/weights/weight.bin", "large constants")]  # fmt: skip
CONV, CUMSUM = {"ane": 0.0047, "bnns": 0.1, "classic_cpu": 0.11}, {"bnns": 0.0043}
PATHS = {"all on the CPU": ["bnns"] * 9, "both halves": [*["ane"] * 4, "bnns", *["ane"] * 4]}
LANES = figures.Lanes(
    "cumsum in the middle", [*["conv"] * 4, "cumsum", *["conv"] * 4],
    [*[CONV] * 4, CUMSUM, *[CONV] * 4], PATHS,
)  # fmt: skip
DIAGRAMS = {
    "lanes": lambda: figures.lanes([LANES, LANES]),
    "way": figures.way,
    "padding": figures.padding,
    "blocks": lambda: figures.blocks(["nrrwwwww", "aaanrrrr", "nwwwwwww"]),
    "engine": lambda: figures.engine(16, 256, 2 << 20, 64 << 10, 32),
    "calls": figures.calls,
    "experts": lambda: figures.experts(16, (1, 6, 8, 15)),
    "families": figures.families,
    "faults": figures.faults,
    "package": lambda: figures.package(FILES),
    "stamping": lambda: figures.stamping(30),
    "stream": figures.stream,
    "shards": lambda: figures.shards([("layers 0-7", 805_852_224), ("head", 1_000_000)], 10**9),
    "residency": figures.residency,
    "layer": figures.layer,
}


def test_every_diagram_is_drawn_here():
    assert set(DIAGRAMS) == {*figures.__all__} - {"COLORS", "Lanes", "bars", "table"}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_text_is_on_the_sheet_and_apart(name):
    figure = DIAGRAMS[name]()
    try:
        figure.canvas.draw()
        assert figure.get_size_inches()[0] <= 5.2
        sheet, places = figure.bbox, []
        for text in figure.axes[0].texts:
            if not text.get_text():
                continue
            assert text.get_fontsize() >= 11
            place = text.get_window_extent()
            assert sheet.x0 <= place.x0 and place.x1 <= sheet.x1, text.get_text()
            assert sheet.y0 <= place.y0 and place.y1 <= sheet.y1, text.get_text()
            places.append((text.get_text(), place))
        for (one, a), (other, b) in combinations(places, 2):
            assert not a.overlaps(b), (one, other)
    finally:
        plt.close(figure)


#: A family in the figure of families -> the `model_type`s of its models.
NAMED = {
    "OLMo 2 and 3": ("olmo2", "olmo3"),
    "EXAONE 4": ("exaone4",),
    "GLM 4": ("glm4",),
    "Gemma": ("gemma3_text", "gemma4_text"),
    "Granite": ("granite", "granitemoehybrid"),
}


@pytest.mark.parametrize("family", TINY)
def test_the_figure_of_families_has_each_norm_where_the_block_has_it(family):
    config = read_config(tiny_model(family).config.to_dict())
    architecture = find(config.architecture)
    norms = [change.replace("\n", " ") for text, _, change in BLOCK
             if text == "norm" or change.startswith("norm: ")]  # fmt: skip
    without, after, again = (
        any(family in NAMED[name] for name in NAMED if name in change) for change in norms
    )
    assert without == again
    for kind in set(architecture.kinds(config)):
        block = architecture.block(config, kind)
        none = [type(part) is nn.Identity for part in (
            block.before_attention, block.before_feed_forward,
            getattr(block, "after_attention", nn.Identity()),
            getattr(block, "after_feed_forward", nn.Identity()),
        )]  # fmt: skip
        assert none == [without, without, not after, not after]
