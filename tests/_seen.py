"""What a browser makes of a page of the book: found in one visit to each screen, told in parts."""

from dataclasses import dataclass

from _chromium import DESK, PHONE, axe_violations, console_errors, look, visit

#: A page is read on a desk by day and on a phone by night.
SCREENS = {"desk": (DESK, "light"), "phone": (PHONE, "dark")}

#: [address, bytes] of the page and of each thing that it loads, once its pictures are there.
LOADED = """
  const done = arguments[0], images = [...document.images];
  images.forEach(image => { image.loading = "eager"; });
  Promise.all(images.map(image => image.decode().catch(() => 0))).then(() => done(
    ["navigation", "resource"].flatMap(kind => performance.getEntriesByType(kind))
      .map(entry => [entry.name, entry.decodedBodySize])));
"""
#: A text that fades in has another contrast on the way, and a busy machine is long on the way.
STILL = """
  const style = document.createElement("style");
  style.textContent =
    "*, ::before, ::after { transition: none !important; animation: none !important; }";
  document.head.append(style);
"""
#: Elements that stick out of the screen, rather than their number of pixels, to name the culprit.
STICKS_OUT = """
  const scrolls = e => e && e !== document.body &&
    (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  return [...document.querySelectorAll('article *')]
    .filter(e => e.getBoundingClientRect().right > arguments[0] + 1 && !scrolls(e.parentElement)
                 && getComputedStyle(e).position !== 'fixed')
    .slice(0, 5).map(e => e.outerHTML.slice(0, 120));
"""
#: CSS pixels of the smallest text in the article's paragraphs and code that a reader sees.
SMALLEST_TEXT = """
  const sizes = [...document.querySelectorAll('article p, article li, article pre, article td')]
    .filter(e => e.offsetParent && e.innerText.trim())
    .map(e => parseFloat(getComputedStyle(e).fontSize));
  return Math.min(...sizes);
"""
#: [source, loaded width, shown width] of the pictures that cells drew.
PICTURES = """
  return [...document.querySelectorAll('article img')].map(
    e => [e.src, e.naturalWidth, e.getBoundingClientRect().width]);
"""
#: Of the article's boxes with all its details open, [the widest one's pixels, those that reach past
#: the text or have to be scrolled sideways]. The search page has no article.
WIDE = """
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  const article = document.querySelector("article") ?? document.querySelector("main");
  const edge = article.getBoundingClientRect().right;
  const scrolls = e => /auto|scroll/.test(getComputedStyle(e).overflowX);
  const boxes = [...article.querySelectorAll(arguments[0])].filter(e => e.offsetWidth);
  return [Math.max(0, ...boxes.map(e => scrolls(e) ? e.scrollWidth : e.offsetWidth)),
    boxes.filter(e => e.getBoundingClientRect().right > edge + 1 ||
      (scrolls(e) && e.scrollWidth > e.clientWidth + 1)
    ).map(e => `${e.scrollWidth} px: ${e.outerHTML.slice(0, 160)}`)];
"""
#: What may not be scrolled; columns that a command printed may, and on a phone code.
BOXES = {
    "desk": ":not(.ane-columns)",
    "phone": "table, .pst-scrollable-table-container, .ane-wide, div.math, "
    ".cell_output, .cell_output :not(.ane-columns)",
}
#: [classes, code point] of each icon of Font Awesome that is shown.
ICONS = """
  return [...document.querySelectorAll("[class*='fa-']")].filter(e => e.offsetParent).map(e =>
    [e.className, getComputedStyle(e, "::before").content.codePointAt(1)]);
"""


@dataclass(frozen=True)
class Seen:
    """A page on one screen; lengths are CSS pixels."""

    loaded: list  # [address, bytes not compressed], the page itself first
    console: list[str]
    width: int  # of the whole page: more than the screen's where it scrolls sideways
    sticks_out: list[str]
    smallest_text: float
    pictures: list  # [address, width of the file, width shown]
    icons: list  # [classes, code point]
    widest: int
    too_wide: list[str]
    axe: list  # as `axe_violations` says


def see(browser, site_url: str, page: str, screen: str) -> Seen:
    """Visit a page, and gather all; what changes the page comes last."""
    size, theme = SCREENS[screen]
    look(browser, size)
    visit(browser, f"{site_url}/{page}.html")
    run = browser.execute_script
    run(STILL)
    found = {
        "loaded": browser.execute_async_script(LOADED),
        "width": run("return document.documentElement.scrollWidth"),
        "sticks_out": run(STICKS_OUT, size["width"]),
        "smallest_text": run(SMALLEST_TEXT),
        "pictures": run(PICTURES),
        "icons": run(ICONS),
    }
    widest, too_wide = run(WIDE, BOXES[screen])
    run(f"document.documentElement.dataset.theme = '{theme}'")
    console = console_errors(browser)
    axe = axe_violations(browser)
    return Seen(**found, console=console, widest=widest, too_wide=too_wide, axe=axe)
