"""A cell that a reader sees uses no name that only cells out of sight define."""

from pathlib import Path

import jupytext
from page_code import Code, names
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = sorted(p for p in BOOK.glob("*.md") if "\nkernelspec:" in p.read_text("utf-8")[:500])
OUT_OF_SIGHT = {"remove-cell", "remove-input"}


def used_but_hidden(cells: list[tuple[str, set[str]]]) -> list[str]:
    """Names that cells in sight use, of which only cells out of sight before them have any."""
    seen, hidden, found = set(), set(), []
    for code, tags in cells:
        made, read = names(Code(code, hidden=False).tree)
        if tags & OUT_OF_SIGHT:
            hidden |= made
        else:
            found += sorted((read & hidden) - made - seen)
            seen |= made
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_reader_sees_uses_only_what_a_reader_saw(page):
    cells = [cell for cell in jupytext.read(page).cells if cell.cell_type == "code"]
    assert not used_but_hidden([(c.source, set(c.metadata.get("tags", []))) for c in cells])


def test_a_name_of_a_hidden_cell_is_found():
    a, b = "import re\nx = 1", "def f(y):\n    return [z + x for z in y]"
    assert used_but_hidden([(a, {"remove-cell"}), (b, set())]) == ["x"]
    assert used_but_hidden([(a, {"hide-input"}), (b, set())]) == []
    assert used_but_hidden([(a, {"remove-input"}), ("x = 2\nre = 3", set()), (b, set())]) == []
