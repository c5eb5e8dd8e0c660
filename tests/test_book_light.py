"""What a page of the site costs its reader: bytes, and what shuts out eyes, screens and keyboards.

Style sheets are cut to what pages use (book/_ext/light_site.py); the first tests are of that. The
others open every page in Chromium, and are skipped without a site in _build/html.
"""

from _chromium import DESK, PHONE, axe_violations, look, needs_chromium
from _site import PAGES, SITE, console_errors, each_page, needs_site, visit
from fontTools.ttLib import TTFont
import light_site
import pytest

WEIGHT = 1_000_000  # bytes of a page with all that it loads, not compressed


# --- style sheets

KEPT = [
    "a{color:red}",
    ".used{x:y}",
    "a.used>b:hover{x:y}",
    ".used:not(.gone){x:y}",
    ":is(.gone,.used) p{x:y}",
    '[class*="gone"]{x:y}',
    '.used::before{content:"}.gone{"}',
    ".used{background:url(\"data:image/svg+xml,<path d='M(0)'/>;{\")}",
    ".used{background:url(data:image/png;base64,AA==)}",
    "@media (min-width:1px){.used{x:y}}",
    "@font-face{font-family:X;src:url(x.woff)}",
    "@keyframes gone{from{x:y}to{x:z}}",
    '@charset "UTF-8";',
    ".used\\:x{x:y}",
    ":root{--x:.gone}",
    "a{width:.5em;margin:0}",
]
LOST = {
    ".gone{x:y}": "",
    ".used .gone{x:y}": "",
    ".gone,.used{x:y}": ".used{x:y}",
    ".used,:is(b,i).gone,.used b{x:y}": ".used,.used b{x:y}",
    "@media print{.gone{x:y}}": "",
    "@media print{.gone{x:y}@media x{.gone{x:y}}.used{x:y}}": "@media print{.used{x:y}}",
    "/* a {note} */.used{x:y}": ".used{x:y}",
}


class TestTrimmed:
    @pytest.mark.parametrize("css", KEPT)
    def test_keeps_what_may_be_needed(self, css):
        assert light_site.trimmed(css, {"used"}) == css
        assert light_site.trimmed(f".gone{{x:y}}{css}.gone{{x:y}}", {"used"}) == css

    @pytest.mark.parametrize("css", LOST)
    def test_loses_what_no_page_has(self, css):
        assert light_site.trimmed(css, {"used"}) == LOST[css]

    def test_keeps_notices_of_licences(self):
        assert light_site.trimmed("/*! MIT */.gone{x:y}", set()) == "/*! MIT */\n"

    def test_twice_is_once(self):
        once = light_site.trimmed("/*! MIT */" + "".join([*KEPT, *LOST]), {"used"})
        assert light_site.trimmed(once, {"used"}) == once

    def test_words_are_of_tags_and_scripts(self, tmp_path):
        (tmp_path / "_static").mkdir()
        (tmp_path / "_static" / "x.js").write_text("e.classList.add('from-script')")
        (tmp_path / "x.html").write_text('<p class="in-tag other">in text</p>')
        words = light_site.words_of(tmp_path)
        assert {"in-tag", "other", "from-script"} <= words and "text" not in words


# --- the site


#: Bytes of the page and of each thing that it loads.
SIZES = """
  const done = arguments[0], images = [...document.images];
  images.forEach(image => { image.loading = "eager"; });
  Promise.all(images.map(image => image.decode().catch(() => 0))).then(() => done(
    ["navigation", "resource"].flatMap(kind => performance.getEntriesByType(kind))
      .map(entry => [entry.name, entry.decodedBodySize])));
"""
#: Boxes of the article that reach past its text, or have to be scrolled sideways.
WIDE = """
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  const article = document.querySelector("article"), edge = article.getBoundingClientRect().right;
  const scrolls = e => /auto|scroll/.test(getComputedStyle(e).overflowX);
  return [...article.querySelectorAll(arguments[0])].filter(e => e.offsetWidth).filter(e =>
    e.getBoundingClientRect().right > edge + 1 || (scrolls(e) && e.scrollWidth > e.clientWidth + 1)
  ).map(e => `${e.scrollWidth} px: ${e.outerHTML.slice(0, 160)}`);
"""
#: Of each kind of token in code, one is enough to judge its colour: axe takes minutes for all.
THIN = """
  const seen = new Set();
  for (const token of document.querySelectorAll(".highlight pre span")) {
    const kind = token.className;
    if (seen.has(kind)) token.remove();
    seen.add(kind);
  }
"""
#: [classes, code point] of each icon of Font Awesome that is shown.
ICONS = """
  return [...document.querySelectorAll("[class*='fa-']")].filter(e => e.offsetParent).map(e =>
    [e.className, getComputedStyle(e, "::before").content.codePointAt(1)]);
"""


@needs_site
@needs_chromium
class TestInChromium:
    @pytest.mark.parametrize("page", [*PAGES, "genindex", "search"])
    def test_weighs_under_a_megabyte(self, browser, site_url, page):
        visit(browser, f"{site_url}/{page}.html")
        sizes = browser.execute_async_script(SIZES)
        heaviest = sorted(((size, name) for name, size in sizes), reverse=True)[:5]
        assert sum(size for _, size in sizes) < WEIGHT, heaviest

    @each_page
    def test_nothing_is_wider_than_the_text_on_a_desk(self, browser, site_url, page):
        look(browser, DESK)
        visit(browser, f"{site_url}/{page}.html")
        assert browser.execute_script(WIDE, "*") == []

    @each_page
    def test_tables_and_outputs_fit_a_phone(self, browser, site_url, page):
        """Code may be scrolled there; nothing else."""
        look(browser, PHONE)
        visit(browser, f"{site_url}/{page}.html")
        boxes = "table, .pst-scrollable-table-container, .ane-wide, .cell_output, .cell_output *"
        assert browser.execute_script(WIDE, boxes) == []

    @pytest.mark.parametrize("page", [*PAGES, "genindex", "search"])
    def test_axe_finds_nothing_serious(self, browser, site_url, page):
        for screen, theme in ((DESK, "light"), (PHONE, "dark")):
            look(browser, screen)
            visit(browser, f"{site_url}/{page}.html")
            browser.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
            browser.execute_script(THIN)
            assert axe_violations(browser) == [], theme

    def test_icons_are_drawn(self, browser, site_url):
        fonts = (SITE / "_static").rglob("fa-*.ttf")
        drawn = {code for font in fonts for code in TTFont(font).getBestCmap()}
        look(browser, DESK)
        visit(browser, f"{site_url}/index.html")
        icons = browser.execute_script(ICONS)
        assert len(icons) > 5 and [icon for icon in icons if icon[1] not in drawn] == []
        assert console_errors(browser) == []
