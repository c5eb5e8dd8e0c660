"""The site as a reader meets it in Chromium, on a desk by day and on a phone by night.

Each page is quick on one of the two, in turn, and long on the other. Skipped without a site in
_build/html, and without Chromium. A page's visit is gathered by the first test that asks for it
(_seen.py); each test reads its own part.
"""

from functools import cache, partial
from itertools import cycle
from pathlib import Path
import re
from urllib.parse import urlsplit

from _chromium import PHONE, console_errors, look, needs_chromium, visit
from _patience import HANGING
from _seen import SCREENS, see
from _site import PAGES, SITE, needs_site
from fontTools.ttLib import TTFont
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

WEIGHT = 1_000_000  # bytes of a page with all that it loads, not compressed


def on_screens(pages: list[str], screens: tuple[str, ...] = tuple(SCREENS)):
    """Marks a test to run on each page and screen, long where the other screen has the turn."""
    cases = [
        pytest.param(page, screen, marks=() if screen == turn else pytest.mark.long)
        for page, turn in zip(pages, cycle(SCREENS), strict=False)
        for screen in screens
    ]
    return pytest.mark.parametrize(("page", "screen"), cases)


each_of_the_site = on_screens([*PAGES, "genindex", "search"])
each_of_the_book = on_screens(PAGES)


@pytest.fixture(scope="module")
def seen(browser, site_url):
    """`seen(page, screen)` -> what a visit found, made once."""
    return cache(partial(see, browser, site_url))


@needs_site
@needs_chromium
class TestPages:
    @each_of_the_site
    def test_weighs_under_a_megabyte(self, seen, page, screen):
        loaded = seen(page, screen).loaded
        heaviest = sorted(((size, name) for name, size in loaded), reverse=True)[:5]
        assert sum(size for _, size in loaded) < WEIGHT, heaviest

    @each_of_the_site
    def test_loads_nothing_from_elsewhere_and_without_an_error(self, seen, site_url, page, screen):
        found = seen(page, screen)
        assert found.console == []
        assert [name for name, _ in found.loaded if not name.startswith(site_url)] == []

    @each_of_the_site
    def test_fits_the_screen(self, seen, page, screen):
        found = seen(page, screen)
        assert found.sticks_out == []
        assert found.width <= SCREENS[screen][0]["width"]

    @each_of_the_book
    def test_nothing_is_wider_than_the_text(self, seen, page, screen):
        """Columns that a command printed may be scrolled, and on a phone code; nothing else."""
        assert seen(page, screen).too_wide == []

    @on_screens(PAGES, ("phone",))
    def test_text_and_pictures_are_large_enough(self, seen, page, screen):
        found = seen(page, screen)
        assert found.smallest_text >= 12
        for source, loaded, shown in found.pictures:
            assert loaded > 0, f"{source} did not load"
            assert shown <= PHONE["width"]
            # ane_book_pages.figures draws 12 pt text at 200 dpi: 33 pixels of the file.
            shrunk = 33 * shown / loaded
            assert not source.endswith(".png") or shrunk >= 10, (
                f"{source}: text is {shrunk:.0f} px high on a phone; draw it at most 6 inches wide"
            )

    @each_of_the_site
    def test_axe_finds_nothing_serious(self, seen, page, screen):
        assert seen(page, screen).axe == []

    def test_icons_are_drawn(self, seen):
        fonts = (SITE / "_static").rglob("fa-*.ttf")
        drawn = {code for font in fonts for code in TTFont(font).getBestCmap()}
        icons = seen("index", "desk").icons
        assert len(icons) > 5 and [icon for icon in icons if icon[1] not in drawn] == []


#: Search and filter a list; gives what it tells, and [text, what the filter is of] of each shown.
ASK = """
  const [word, key, value] = arguments, box = document.querySelector(".ane-finder");
  box.querySelector("input").value = word;
  box.querySelector(`select[name=${key}]`).value = value;
  box.dispatchEvent(new Event("input"));
  const all = [...document.querySelectorAll(box.dataset.entries)];
  return [box.querySelector("[role=status]").textContent,
    all.filter(one => one.checkVisibility()).map(one =>
      [one.textContent.toLowerCase(), one.dataset[key]])];
"""


def found(browser, site_url: str, word: str) -> set[str]:
    """The pages that a search names."""
    visit(browser, f"{site_url}/search.html?q={word}")
    told = By.CSS_SELECTOR, "#search-results .search-summary"
    WebDriverWait(browser, HANGING).until(
        lambda driver: any("finished" in each.text for each in driver.find_elements(*told))
    )
    links = browser.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a")
    return {Path(urlsplit(link.get_attribute("href")).path).stem for link in links}


@needs_site
@needs_chromium
class TestSite:
    def test_pages_follow_the_readers_theme(self, browser, site_url):
        visit(browser, f"{site_url}/index.html")
        lightness = {}
        for theme in ("light", "dark"):
            browser.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
            color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            lightness[theme] = sum(map(int, re.findall(r"\d+", color)[:3])) / 3
        assert lightness["dark"] < 64 < 192 < lightness["light"]

    @pytest.mark.parametrize(
        ("page", "word", "key", "value"),
        [("claims", "decode", "chip", "M5 Pro"), ("reports", "package", "verdict", "no")],
    )
    def test_a_list_shows_what_is_asked_for(self, browser, site_url, page, word, key, value):
        visit(browser, f"{site_url}/{page}.html")
        _, every = browser.execute_script(ASK, "", key, "")
        told, left = browser.execute_script(ASK, word, key, value)
        assert told == f"{len(left)} of {len(every)}" and 0 < len(left) < len(every)
        asked = [one for one in every if word in one[0] and value in one[1].split("; ")]
        assert left == asked
        assert browser.execute_script(ASK, "nosuchword", key, "") == [f"0 of {len(every)}", []]

    def test_a_link_to_a_claim_that_is_hidden_shows_it(self, browser, site_url):
        visit(browser, f"{site_url}/claims.html")
        browser.execute_script(ASK, "nosuchword", "chip", "")
        heading, claim = browser.find_elements(By.CSS_SELECTOR, "#shapes, #axis-most")
        assert not heading.is_displayed() and not claim.is_displayed()
        browser.execute_script("location.hash = 'axis-most'")
        WebDriverWait(browser, HANGING).until(lambda driver: claim.is_displayed())
        assert heading.is_displayed()
        # once more, from where one is already
        browser.execute_script(ASK, "nosuchword", "chip", "")
        browser.execute_script("""document.querySelector("a[href='#axis-most']").click()""")
        WebDriverWait(browser, HANGING).until(lambda driver: claim.is_displayed())

    @pytest.mark.parametrize("screen", SCREENS)
    def test_a_title_is_larger_than_those_of_its_sections(self, browser, site_url, screen):
        look(browser, *SCREENS[screen])
        visit(browser, f"{site_url}/the-cache.html")
        sizes = browser.execute_script("""
            return ["h1", "h2", "h3"].map(name => document.querySelector(`article ${name}`))
              .filter(each => each).map(each => parseFloat(getComputedStyle(each).fontSize))""")
        assert sizes[1] <= 0.75 * sizes[0] and sizes == sorted(set(sizes), reverse=True), sizes

    def test_a_title_is_apart_from_the_bar_above_it(self, browser, site_url):
        look(browser, *SCREENS["phone"])
        visit(browser, f"{site_url}/the-cache.html")
        bar, title = browser.execute_script("""
            const box = each => document.querySelector(each).getBoundingClientRect();
            return [box(".bd-header-article").bottom, box("article h1").top]""")
        assert title >= bar + 8

    def test_the_magnifier_is_beside_what_is_searched_for(self, browser, site_url):
        visit(browser, f"{site_url}/search.html?q=executor")
        icon, text = browser.execute_script("""
            const [icon, field] = document.querySelector(".bd-search-container form").children;
            return [icon.getBoundingClientRect().right, field.getBoundingClientRect().left +
              parseFloat(getComputedStyle(field).paddingLeft)]""")
        assert icon <= text

    def test_search_finds_a_word_in_either_spelling(self, browser, site_url):
        assert "glossary" in found(browser, site_url, "executor")
        assert console_errors(browser) == []
        for british, american in (("quantising", "quantizing"), ("neighbours", "neighbors")):
            pages = found(browser, site_url, british)
            assert pages and pages == found(browser, site_url, american)

    def test_search_finds_a_number(self, browser, site_url):
        assert "serving" in found(browser, site_url, "429")
