"""research/reviews.md: whatever is said to keep an error mended is there, and does keep it."""

from pathlib import Path
import re

from ane_book_pages import records, sources
from mlprogram.ane import laws
from mlprogram.ane.cost import chips, parameter
import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOTE = ROOT / "research" / "reviews.md"
KNOWN = {*sources.everything(), *chips(), *laws.load()}
OPEN = {"disputed", "gone", "open"}
MOVED = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]["redirects"]
OTHER_READINGS = {"M4", "M4 Max"}  # whose high ends are 751K's, and a second Mac's
CALL = 0.36  # the most ms of a call that the highest rate of a chip leaves out


def rows() -> dict[str, list[str]]:
    """Item -> its cells, in the order of the note."""
    lines = re.findall(r"^\| ([A-Z]\d+) \|(.*)\|$", NOTE.read_text("utf-8"), re.M)
    return {item: [cell.strip() for cell in cells.split(" | ")] for item, cells in lines}


def missing(name: str) -> str | None:
    """Why what a row rests on is not there: a claim, a file, a test in a file, or a page."""
    path, _, test = name.partition("::")
    if name in KNOWN:
        return None
    if path.startswith("book/") and Path(path).stem in MOVED:
        return None  # its redirect says where it went
    if "/" not in path or not (ROOT / path).is_file():
        return f"{name}: no claim, and no file"
    if test and f"def {test}(" not in (ROOT / path).read_text("utf-8"):
        return f"{name}: no such test"
    return None


@pytest.mark.parametrize("item", rows())
def test_what_keeps_an_error_mended_is_there(item):
    *_, keeps = rows()[item]
    names = re.findall(r"`([^`]+)`", keeps)
    assert names or keeps in OPEN, f"{item} rests on nothing"
    assert [why for name in names if (why := missing(name))] == []


def test_no_item_of_the_reviews_is_left_out():
    wanted = {"T": 30, "E": 18, "S": 25}
    assert [*rows()] == [f"{letter}{n + 1}" for letter, most in wanted.items() for n in range(most)]


def test_a_chips_rate_is_of_one_model():
    """GB/s and ms of anemll-bench belong to two models: a head in fp16, and one in 6 bits."""
    figures = [
        row
        for row in records.read("measurements/published.json")["rows"]
        if row["source"]["repository"] == "Anemll/anemll-bench"
    ]
    rates = {row["chip"]: row["value"] for row in figures if row["model"] == "llama_lm_head"}
    latencies = {row["chip"] for row in figures if row["model"] == "llama_lm_head_lut6"}
    assert len(rates) == 13 and rates.keys() == latencies
    for chip in chips().values():
        if chip.chip in rates and chip.chip not in OTHER_READINGS:
            rate, (low, high) = rates[chip.chip], chip.bounds
            without_call = 1 / (1 / rate - CALL / 1050.674)  # GB/s of 1,050.674 MB
            assert low <= rate <= high <= without_call + 0.1, chip.id


def test_what_nobody_measured_is_not_graded_so():
    segment = parameter("segment")
    assert segment.grade == "community" and "nobody has measured" in segment.support[0].says
