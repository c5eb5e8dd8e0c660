"""Slides of chapters (book/_ext/slides.py): what a page becomes, and the site's own on screens.

Without a site in _build/html, or without Chromium, the latter are skipped.
"""

from pathlib import Path

from _site import SITE, needs_site
from bs4 import BeautifulSoup
import pytest
import slides

each_deck = pytest.mark.parametrize("name", slides.CHAPTERS)


def read(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def text(element) -> str:
    return " ".join(element.get_text(" ").split())


def test_pages_of_the_book_do_not_load_what_slides_do():
    """Jupyter Book puts every sheet and script of _static on every page."""
    static = Path(slides.__file__).parents[1] / "_static"
    loaded = {path.name for path in static.rglob("*") if path.suffix in (".css", ".js")}
    assert loaded == {"book.css", "book.js"}


@needs_site
@each_deck
class TestSite:
    def test_every_slide_says_something_and_every_chapter_has_the_same_parts(self, name):
        deck = read(SITE / "slides" / f"{name}.html")
        first, *others = deck.select(".slide")
        for slide in (first, *others):
            assert len(slide.find_all(["h1", "h2"])) == 1
            assert slide.find_all(["p", "ul", "math", "table", "figure"])
        assert first.select_one(".question") and len(text(first.select("p")[1]).split()) > 20
        headings = [text(slide.find("h2")) for slide in others]
        assert headings[0] == "You will" and headings[-1] == "Next" and "The rule" in headings
        assert "Pitfalls seen in the wild" in headings and "Exercise" in headings[-2]
        assert sum("by hand" in text(slide).lower() for slide in others) >= 1
        ids = [str(number) for number in range(1, len(others) + 2)]
        assert [tag["id"] for tag in deck.find_all(id=True)] == ids

    def test_every_figure_of_the_chapter_is_on_a_slide(self, name):
        chapter = read(SITE / f"{name}.html").article
        in_exercises = chapter.select("#exercises figure img")
        own = [image for image in chapter.select("figure img") if image not in in_exercises]
        shown = read(SITE / "slides" / f"{name}.html").select("figure img")
        assert own and [f"../{image['src']}" for image in own] == [image["src"] for image in shown]
