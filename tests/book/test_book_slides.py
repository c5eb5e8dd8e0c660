"""Slides of chapters (book/_ext/slides.py): what a page becomes, and the site's own on screens.

Without a site in _build/html, or without Chromium, the latter are skipped.
"""

from pathlib import Path

from _chromium import PHONE, axe_violations, look, needs_chromium
from _seen import STICKS_OUT, STILL
from _site import SITE, console_errors, needs_site, visit
from bs4 import BeautifulSoup
import pytest
import slides

SCREEN = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}
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


#: Slides that are taller than the screen, or wider, by their heading.
TOO_LARGE = """
  return [...document.querySelectorAll(".slide")]
    .filter(s => s.offsetHeight > innerHeight + 1 || s.scrollWidth > s.clientWidth + 1)
    .map(s => s.querySelector("h1, h2").textContent);
"""


@pytest.fixture
def show(browser, site_url):
    """`show(name, screen, scheme)`: visit a chapter's slides."""

    def visit_deck(name: str, screen: dict, scheme: str = "light") -> None:
        look(browser, screen, scheme)
        visit(browser, f"{site_url}/slides/{name}.html")

    return visit_deck


@needs_site
@needs_chromium
class TestSeen:
    @each_deck
    def test_slides_fit_the_screen_and_a_phone_and_shut_nobody_out(self, browser, show, name):
        for scheme in ("light", "dark"):
            show(name, SCREEN, scheme)
            assert browser.execute_script(TOO_LARGE) == [] and console_errors(browser) == []
            assert browser.execute_script("return document.documentElement.dataset.theme") == scheme
            browser.execute_script(STILL)
            assert axe_violations(browser) == []
        show(name, PHONE)
        assert browser.execute_script(STICKS_OUT, PHONE["width"]) == []

    def test_keys_turn_the_slides(self, browser, show):
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        show(slides.CHAPTERS[0], SCREEN)
        count = len(browser.find_elements(By.CLASS_NAME, "slide"))
        body, told = browser.find_element(By.TAG_NAME, "body"), []
        for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.SPACE, Keys.ARROW_LEFT, Keys.END,
                    Keys.ARROW_RIGHT, Keys.HOME):  # fmt: skip
            body.send_keys(key)
            told.append(browser.execute_script("return Number(location.hash.slice(1))"))
            top = f"return document.getElementById('{told[-1]}').getBoundingClientRect().top"
            assert abs(browser.execute_script(top)) <= 1
        assert told == [2, 3, 4, 3, count, count, 1]
