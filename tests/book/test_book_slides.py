"""Slides of chapters (book/_ext/slides.py): what a page becomes, and the site's own on screens.

Without a site in _build/html, or without Chromium, the latter are skipped.
"""

from pathlib import Path
import re

from _chromium import PHONE, axe_violations, look, needs_chromium
from _seen import STICKS_OUT, STILL
from _site import SITE, console_errors, needs_site, visit
from bs4 import BeautifulSoup
import pdf
import pytest
import slides

SCREEN = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}
each_deck = pytest.mark.parametrize("name", slides.CHAPTERS)

PAGE = """<html><head><link rel="stylesheet" href="_static/x.css"><link rel="prev" href="y.html">
</head><body><article><section id="weights"><h1>1. Weights<a class="headerlink">#</a></h1>
<p>A model has <b>1.5</b> MB. How many weights? It has <a href="other.html">a half</a>. Each takes
two bytes.</p>
<div class="you-will admonition"><p class="admonition-title">You will</p><ul><li>count.</li></ul>
</div>
<section id="by-hand"><h2>By hand<a class="headerlink">#</a></h2><p>One. Two makes:</p>
<div class="math"><math><mn>2</mn></math></div><p>Three.</p><p>See the code:</p><div class="cell">
</div></section>
<section id="seen"><h2>Seen</h2><p>Left out. This leads to it.</p><div class="cell"><figure id="f">
<img src="_images/f.png" alt="A figure"><figcaption><p><span class="caption-number">Fig. 1</span>
<span class="caption-text">The line. The rest.</span></p></figcaption></figure></div>
<p>Nothing is shown.</p></section>
<section id="pitfalls-seen-in-the-wild"><h2>Pitfalls</h2><div class="pitfall admonition">
<p class="admonition-title">Mind</p><ul><li><p><b>One</b>: it fails. At length.</p></li></ul></div>
<div class="pitfall admonition"><p class="admonition-title">A box</p><p>Whole. All.</p></div>
</section>
<section id="exercises"><h2>Exercises</h2><div class="exercise" id="ex"><p>Exercise 1</p>
<section id="exercise-content"><p>How many?</p></section></div></section>
<section id="next"><h2>Next</h2><p>Go to <a href="#by-hand">the start</a>.</p></section>
</section></article></body></html>"""


@pytest.fixture
def deck(tmp_path):
    (tmp_path / "weights.html").write_text(PAGE)
    return read(slides.write(tmp_path, "weights"))


def read(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def text(element) -> str:
    return " ".join(element.get_text(" ").split())


class TestWrite:
    def test_a_page_becomes_slides_in_its_order(self, deck):
        headings = [text(slide.find(["h1", "h2"])) for slide in deck.select(".slide")]
        assert headings == ["1. Weights", "You will", "By hand 1 of 2", "By hand 2 of 2",
                            "Seen", "Pitfalls", "Exercise 1", "Next"]  # fmt: skip

    def test_the_question_stands_apart_from_the_answer(self, deck):
        question, answer = deck.select(".title > p")
        assert question["class"] == ["question"]
        assert text(question) == "A model has 1.5 MB. How many weights?"
        assert text(answer) == "It has a half . Each takes two bytes."

    def test_what_is_worked_by_hand_is_whole_and_the_rest_is_what_is_shown(self, deck):
        first, second, seen = deck.select(".step")[:3]
        assert text(first.p) == "One. Two makes:" and first.math
        assert text(second.p) == "Three." and not second.math
        assert text(seen.p) == "This leads to it."
        assert text(seen.figcaption) == "Fig. 1 The line." and seen.img["alt"] == "A figure"

    def test_a_pitfall_is_an_item(self, deck):
        items = [text(item) for item in deck.select("li")][1:]
        assert items == ["One : it fails.", "A box . Whole. All."]

    def test_pages_of_the_book_do_not_load_what_slides_do(self):
        """Jupyter Book puts every sheet and script of _static on every page."""
        static = Path(slides.__file__).parents[1] / "_static"
        loaded = {path.name for path in static.rglob("*") if path.suffix in (".css", ".js")}
        assert loaded == {"book.css", "book.js"}

    def test_links_lead_where_they_led(self, deck):
        found = {tag.get("href") or tag["src"] for tag in deck.select("[href], [src]")}
        assert {"../other.html", "../_images/f.png", "../_static/x.css"} <= found
        assert {"../weights.html", "../weights.html#by-hand", "../weights.html#ex"} <= found
        assert "../y.html" not in found and not deck.select(".headerlink")

    def test_a_chapter_without_a_question_is_refused_by_name(self, tmp_path):
        (tmp_path / "weights.html").write_text(PAGE.replace("?", "."))
        with pytest.raises(ValueError, match=r"book/weights\.md has no slides: .* no question"):
            slides.write(tmp_path, "weights")

    def test_a_table_that_does_not_fit_is_left_out(self):
        rows = "<tr><td>1</td></tr>"
        table = BeautifulSoup(rows * (slides.LINES + 1), "html.parser")
        assert slides.fit(table("tr")[1:]) and not slides.fit(table("tr"))


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

    def test_a_slide_is_a_page_of_the_pdf(self, tmp_path):
        deck = SITE / "slides" / f"{slides.CHAPTERS[0]}.html"
        pdf.print_page(pdf.find_browser(), deck, tmp_path / "deck.pdf")
        pages = re.findall(rb"/Type\s*/Page\b", (tmp_path / "deck.pdf").read_bytes())
        assert len(pages) == len(read(deck).select(".slide"))
