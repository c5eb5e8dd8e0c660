"""Pages of the third edition are short, show their code, and import little; named as they come."""

import re

from _executed import source
from _site import ROOT
import pytest

DONE = ("what-a-token-costs", "the-cache")
PAGES = sorted(page.stem for page in (ROOT / "book").glob("*.md"))
WORDS, LINES, HIDDEN, LIBRARIES, OURS = 1900, 450, 60, 4, 2
CELL = re.compile(r"```\{code-cell\}[^\n]*\n((?:---.*?---\n|(?::[^\n]*\n)*))(.*?)```", re.DOTALL)
IMPORT = re.compile(
    r"^(?:from (?:ane_book|mlprogram|ane_serve|ane_families)(?:\.[\w.]+)? import (.+)"
    r"|import ((?:ane_book|mlprogram|ane_serve|ane_families)[\w.]*))$", re.MULTILINE
)  # fmt: skip
each_page = pytest.mark.parametrize("page", DONE)


def cells(page: str) -> list[tuple[str, str]]:
    """Each cell's options and its code."""
    return CELL.findall(source(page))


@each_page
def test_a_page_is_short(page):
    words = re.sub(r"```\{code-cell\}.*?```", "", source(page), flags=re.S).split()
    assert len(words) <= WORDS and len(source(page).splitlines()) <= LINES


@each_page
def test_a_page_shows_its_code(page):
    hidden = [line for tags, code in cells(page) if re.search(r"remove-|hide-", tags)
              for line in code.splitlines() if line.strip()]  # fmt: skip
    assert len(hidden) <= HIDDEN
    assert "assert" not in "\n".join(hidden)


#: Pages whose subject is parts of the libraries, and how many names each may import at most.
INSIDE = {
    "bits": (7, 2),  # texts, references and schemes behind a measured loss
    "from-a-layer-to-packages": (10, 3),  # a conversion, step by step
    "known-faults": (5, 1),  # finds, shows and mends a fault
    "testing": (5, 2),  # each check of a converted program
    "will-it-run": (5, 2),  # laws, path, edits and the work of an op
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_imports_little(page):
    libraries, own = INSIDE.get(page, (LIBRARIES, OURS))
    code = "\n".join(code for _, code in cells(page))
    names = [name for found in IMPORT.findall(code) for name in "".join(found).split(", ")]
    ours = {name for found in re.findall(r"^from ane_book_pages\S* import (.+)$", code, re.M)
            for name in found.split(", ")}  # fmt: skip
    assert len(set(names)) <= libraries and len(ours) <= own, (names, ours)


@each_page
def test_a_page_ends_with_a_checklist(page):
    _, last, following = source(page).rsplit("\n## ", 2)
    assert last.startswith("Before you ") and following.startswith("Next\n")
    assert 5 <= len(re.findall(r"^- ☐ ", last, re.M)) <= 9
