"""Ratios of times that the book's pages measure as they run, as the record that they quote.

    python research/measurements/pages.py [--rounds 3] [--note "what else ran"] [page ...]

A page gives such a ratio to `ane_book_pages.records.live`. This runs such pages as a build does,
one after another, and writes the median of each ratio over the rounds. Pages that are not named
keep their figures.

Results go to research/measurements/pages.json.
"""

import argparse
from collections import defaultdict
import json
from pathlib import Path
import re
from statistics import median
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MEASUREMENTS, moment, record
from ane_book_pages.records import LIVE
import jupytext
from nbclient import NotebookClient

BOOK = MEASUREMENTS.parents[1] / "book"
CALL = re.compile(r"^ *records\.live\(", re.M)
GLUED = "application/papermill.record/text/plain"


def ratios(page: Path) -> dict[str, float]:
    """What a page has measured, by name. An assertion on an older record may fail meanwhile."""
    notebook = jupytext.read(page)
    place = {"metadata": {"path": str(BOOK)}}
    NotebookClient(notebook, timeout=1800, allow_errors=True, resources=place).execute()
    glued = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                print(f"{page.stem}: {output.ename}: {output.evalue} in\n{cell.source}")
            if name := output.get("metadata", {}).get("scrapbook", {}).get("name"):
                glued[name] = output.data.get(GLUED, "")
    return {name.removeprefix(LIVE): float(glued[name]) for name in glued if name.startswith(LIVE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", help="how quiet the machine was, in words")
    parser.add_argument("pages", nargs="*", help="such as shipping; by default, all")
    given = parser.parse_args()
    live = [p.stem for p in sorted(BOOK.glob("*.md")) if CALL.search(p.read_text("utf-8"))]
    file = MEASUREMENTS / "pages.json"
    pages = json.loads(file.read_text("utf-8"))["pages"] if file.is_file() else {}
    for name in given.pages or live:
        began, values = moment(), defaultdict(list)
        for _ in range(given.rounds):
            for figure, value in ratios(BOOK / f"{name}.md").items():
                values[figure].append(value)
        recorded = began | {"note": given.note}
        pages[name] = {"recorded": recorded, "rounds": given.rounds, "values": values}
    figures = {f: median(all_) for name in live for f, all_ in pages[name]["values"].items()}
    record("pages", {"figures": figures, "pages": {name: pages[name] for name in live}})


if __name__ == "__main__":
    main()
