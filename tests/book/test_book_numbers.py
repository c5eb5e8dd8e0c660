"""One number per fact: where built pages count one thing in several places, they give one number.

Numbers about the engine are held to the registry in test_book_claims.py. These are counts, which
cells compute: each by another sum, if nobody looks. Notebooks have the numbers that pages show.
"""

from functools import cache
import re

from _site import PAGES, SITE, each_page, needs_site
from ane_book_pages import sources
from bs4 import BeautifulSoup
from mlprogram.ane import cost
import pytest
import to_notebooks

pytestmark = needs_site

CLAIMS = {**sources.everything(), **cost.chips()}
COUNTS = {  # what it is: the words around it, the numbers that they may have
    "claims": (r"(\d+) claims about the ANE|of the (\d+) on Every claim", {len(CLAIMS)}),
    # a decode call of SmolLM2's layers, and with its head
    "operations": (r"\b(1,2\d\d) op(?:eration)?s\b", {1_242, 1_250}),
    "the mask": (r"−(1e4|[1-9]0,000)\b", {40_000, 30_000}),  # the second in graphs of others
}


@cache
def prose(page: str) -> str:
    """The page's sentences: no code, no output of code, no table."""
    article = BeautifulSoup((SITE / f"{page}.html").read_text("utf-8"), "html.parser").article
    for part in article.select("pre, table, script, style, .ane-claim"):
        part.decompose()
    return re.sub(r"\s+", " ", article.get_text())


@pytest.mark.parametrize("what", COUNTS)
def test_a_count_is_the_same_wherever_it_stands(what):
    pattern, right = COUNTS[what]
    found = {}
    for page in PAGES:
        for groups in re.finditer(pattern, prose(page)):
            text = next(filter(None, groups.groups()))
            found.setdefault(float(text.replace(",", "")), set()).add(page)
    assert found and set(found) <= right, found


@each_page
def test_notebooks_have_the_numbers_that_pages_show(page):
    """They are made from a record, where cells do not run: notebooks/values.json."""
    shown = to_notebooks.shown(to_notebooks.BOOK / f"{page}.md")
    why = "differ: run `python book/_ext/to_notebooks.py --values`"
    assert shown == to_notebooks.values().get(page, {}), why
