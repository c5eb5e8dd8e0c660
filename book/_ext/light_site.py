"""A site that sends what its pages use: the theme alone was two megabytes a page.

* Style sheets lose the rules for classes that no page and no script has: Bootstrap and Font
  Awesome come whole with the theme, 550 kB of rules of which the book uses a quarter.
* Font Awesome's fonts keep the icons that the pages show. Its script, 1.5 MB, draws the same icons
  and is not sent; nor is the search index, but to the page that searches (book/_templates).
"""

from collections.abc import Iterator
from pathlib import Path
import re

from fontTools import subset
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: Where a style sheet's structure is: strings and addresses, which may hold anything, and braces.
STRUCTURE = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|url\([^)"\']*\)|[{};]', re.DOTALL)
GROUPS = ("@media", "@supports", "@layer", "@container")  # rules that hold rules
NEVER_SENT = ("scripts/fontawesome.js", "scripts/fontawesome.js.map")


def rules(css: str) -> Iterator[tuple[str, str | None]]:
    """(what stands before the brace, what stands in it) of each rule; None for a statement."""
    start = depth = 0
    for found in STRUCTURE.finditer(css):
        mark = found.group()
        if mark == "{":
            if depth == 0:
                head, inside = css[start : found.start()].strip(), found.end()
            depth += 1
        elif mark == "}" and depth:
            depth -= 1
            if depth == 0:
                yield head, css[inside : found.start()]
                start = found.end()
        elif mark == ";" and depth == 0:
            yield css[start : found.start()].strip(), None
            start = found.end()


def selectors(head: str) -> Iterator[str]:
    """The selectors of a rule: cut at the commas that stand in no bracket."""
    start = depth = 0
    for found in re.finditer(r"[(\[)\],]", head):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1, ",": 0}[found.group()]
        if found.group() == "," and depth == 0:
            yield head[start : found.start()]
            start = found.end()
    yield head[start:]


def may_match(selector: str, words: set[str]) -> bool:
    """Whether a page may have what the selector asks for: all its classes outside brackets."""
    while (bare := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", selector)) != selector:
        selector = bare
    return "\\" in selector or all(name in words for name in re.findall(r"\.([\w-]+)", selector))


def trimmed(css: str, words: set[str]) -> str:
    """The rules whose classes are among the words; notices of licences stay."""
    notices = re.findall(r"/\*!.*?\*/", css, re.DOTALL)
    kept = [notice + "\n" for notice in notices]
    for head, body in rules(re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)):
        if body is None:
            kept.append(f"{head};")
        elif head.startswith(GROUPS):
            if inner := trimmed(body, words):
                kept.append(f"{head}{{{inner}}}")
        elif head.startswith("@"):
            kept.append(f"{head}{{{body}}}")
        elif left := [one for one in selectors(head) if may_match(one, words)]:
            kept.append(f"{','.join(left)}{{{body}}}")
    return "".join(kept)


def words_of(site: Path) -> set[str]:
    """Every word in the tags of the pages, and in the scripts, which may add classes."""
    pages = "".join(
        tag
        for page in site.rglob("*.html")
        for tag in re.findall(r"<[^>]+>", page.read_text("utf-8"))
    )
    scripts = "".join(path.read_text("utf-8") for path in (site / "_static").rglob("*.js"))
    return set(re.findall(r"[\w-]+", pages + scripts))


def keep_icons(font: Path, codes: set[int]) -> None:
    """Leave a font the glyphs of these code points; its licence stays in its names."""
    options = subset.Options(name_IDs=["*"], layout_features=[], notdef_outline=True)
    opened = subset.load_font(str(font), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=codes)
    cutter.subset(opened)
    subset.save_font(opened, str(font), options)


def lighten(app, exception) -> None:
    """Trim what Sphinx has copied, as it does anew in each build."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for name in NEVER_SENT:
        (static / name).unlink(missing_ok=True)
    words, before, after, codes = words_of(Path(app.outdir)), 0, 0, set()
    for sheet in static.rglob("*.css"):
        css = sheet.read_text("utf-8")
        light = trimmed(css, words)
        # The fonts as woff2 would need another package to be cut.
        light = re.sub(r'url\([^)]*\.woff2\)\s*format\("woff2"\),', "", light)
        codes |= {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', light)}
        codes |= {ord(letter) for letter in re.findall("[\ue000-\uf8ff]", light)}
        sheet.write_text(light, "utf-8")
        before, after = before + len(css), after + len(light)
    for font in static.rglob("fa-*.ttf"):
        keep_icons(font, codes)
    for font in static.rglob("fa-*.woff2"):
        font.unlink()
    logger.info("style sheets: %d kB, of which pages use %d", before // 1000, after // 1000)


def setup(app):
    app.connect("build-finished", lighten)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
