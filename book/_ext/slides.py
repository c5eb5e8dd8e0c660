"""Slides of a chapter, cut out of its built page: a part of `make book`, printed by `make slides`.

What every chapter has becomes slides: its question and the answer, what one will do, the rule in
its box, each step that is worked by hand, formulas, figures, tables that fit, pitfalls, an exercise
and what comes next. Words, numbers and figures are the page's, so nothing is kept twice. How they
look is in slides.css, how they are turned in slides.js; both lie here, because Jupyter Book puts
every sheet and script of _static on every page.
"""

from collections.abc import Iterator
from copy import copy
from itertools import groupby
from math import ceil
from operator import attrgetter
from pathlib import Path
import re
from shutil import copy2, rmtree
from typing import NamedTuple
from urllib.parse import urlsplit

from bs4 import BeautifulSoup, NavigableString, Tag
import pdf

#: The chapters that have slides; any chapter that opens with a question can be among them.
CHAPTERS = ("what-a-token-costs", "the-cache", "will-it-run")

#: A sentence ends before a space and a capital, or before an element that follows a space.
END = re.compile(r"(?<=[.!?])\s+(?=[\dA-Z“]|$)")
TABLE = "pst-scrollable-table-container"
#: Letters of a line at 1280 x 720, and the lines of a table or a list that fit below a heading.
LETTERS, LINES = 90, 13

SITE = pdf.ROOT / "_build" / "html"

PAGE = """<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slides: {title}</title>
{sheets}
<link rel="stylesheet" href="slides.css">
<link rel="icon" href="../_static/favicon.svg">
<script src="slides.js"></script>
<script src="../_static/book.js"></script>
</head>
<body>
<main class="bd-content"><article class="bd-article">
{slides}
</article></main>
</body>
</html>
"""


class Slide(NamedTuple):
    """place: the id on the chapter's page where it is told at length; kind: a class for the CSS."""

    heading: str
    parts: list[Tag]
    place: str = ""
    kind: str = "step"


def tag(name: str, *children, **attributes) -> Tag:
    """An element around copies: the page keeps what it has."""
    made = Tag(name=name, attrs=attributes)
    for child in children:
        made.append(copy(child) if isinstance(child, Tag) else NavigableString(child))
    return made


def sentences(paragraph: Tag) -> list[Tag]:
    """A paragraph as one for each sentence; what stands in an element is not cut."""
    found: list[list] = [[]]
    for child in paragraph.children:
        first, *others = [child] if isinstance(child, Tag) else END.split(child)
        found[-1].append(first)
        found += [[other] for other in others]
    made = [tag("p", *pieces) for pieces in found]
    return [sentence for sentence in made if sentence.get_text(strip=True)]


def joined(paragraphs: list[Tag], name: str = "p", **attributes) -> Tag:
    """Several sentences in one element."""
    children = [part for each in paragraphs for part in (*each.contents, " ")]
    return tag(name, *children, **attributes)


def words(heading: Tag) -> str:
    return heading.get_text().strip().removesuffix("#")


def fit(texts: list[Tag]) -> bool:
    """Whether rows, or paragraphs, have the room of a slide."""
    letters = (len(text.get_text(" ", strip=True)) for text in texts)
    return sum(ceil(each / LETTERS) for each in letters) <= LINES


def opening(chapter: Tag, name: str) -> Iterator[Slide]:
    """The question and the answer, what one will do, the rule."""
    first = sentences(chapter.find("p"))
    asked = [i for i, said in enumerate(first, 1) if said.get_text().endswith("?")]
    if not asked:
        raise ValueError(f"book/{name}.md has no slides: its first paragraph asks no question")
    question = joined(first[: asked[0]], **{"class": "question"})
    yield Slide(words(chapter.h1), [question, joined(first[asked[0] :])], kind="title")
    for kind, heading in (("you-will", "You will"), ("takeaway", "The rule")):
        for box in chapter.select(f"div.{kind}.admonition"):
            yield Slide(heading, box.find_all(recursive=False)[1:], kind=kind)


def shown(block: Tag) -> list[Tag]:
    """What a slide can show of a block of the page: formulas, figures, tables."""
    if {"math", TABLE} & {*block.get("class", [])}:
        return [block]
    return [] if block.name == "section" else block.select(f"figure, div.{TABLE}")


def brief(thing: Tag) -> Tag:
    """A figure with the first sentence of its caption; anything else as it is."""
    made = copy(thing)
    if thing.name == "figure":
        number, text = made.select(".caption-number, .caption-text")
        first = tag("span", *sentences(text)[0].contents, **{"class": "caption-text"})
        made.figcaption.replace_with(tag("figcaption", number, first))
    return made


def remark(block: Tag) -> list[Tag]:
    """The first sentence of the paragraph after a block, unless it leads on to something else."""
    after = block.find_next_sibling()
    first = sentences(after)[:1] if after and after.name == "p" else []
    return [said for said in first if not said.get_text().endswith(":")]


def steps(section: Tag) -> Iterator[Slide]:
    """What a section shows, below the sentence that leads to it; what is worked by hand, whole."""
    heading, place = words(section.find(["h2", "h3"])), section["id"]
    by_hand = "by hand" in heading.lower()
    said: list[Tag] = []  # sentences since the last slide
    for block in section.find_all(recursive=False):
        if block.name == "p":
            if not by_hand and block.get_text().startswith("By hand"):
                yield Slide(heading, [block], place)
            said = [*said, *sentences(block)] if by_hand else sentences(block)[-1:]
        for thing in shown(block):
            lead = [joined(said)] if said else []
            behind = remark(block) if thing.math or not (lead or by_hand) else []
            if fit([*lead, *thing("tr"), *behind]):
                yield Slide(heading, [*lead, brief(thing), *behind], place)
            said = []
        if block.name == "div" and said:  # code follows, which no slide shows
            said = [each for each in said if not each.get_text().endswith(":")]
            if by_hand and said:
                yield Slide(heading, [joined(said)], place)
            said = []
    if by_hand and said:
        yield Slide(heading, [joined(said)], place)


def pitfalls(section: Tag) -> Slide:
    """One list: a box as it begins, of a box that is a list the first sentence of each item."""
    items = [joined(sentences(item)[:1], "li") for item in section.select("div.pitfall li > p")]
    for box in section.select("div.pitfall:not(:has(li))"):
        title, text = box("p")[:2]
        items.append(joined([tag("p", tag("strong", *title.contents), "."), text], "li"))
    return Slide(words(section.h2), [tag("ul", *items)], section["id"])


def slides(page: BeautifulSoup, name: str) -> Iterator[Slide]:
    """Every slide of a chapter, in order."""
    chapter = page.select_one("article > section")
    yield from opening(chapter, name)
    for section in chapter.select("section:has(> :is(h2, h3))"):
        if section["id"].startswith("pitfalls"):
            yield pitfalls(section)
        elif section["id"] == "exercises":
            box = section.select_one("div.exercise")
            yield Slide(box.p.get_text(), box.section.find_all(recursive=False), box["id"])
        elif section["id"] == "next":
            yield Slide("Next", section("p", recursive=False), "next")
        else:
            yield from steps(section)


def moved(element: Tag, name: str) -> Tag:
    """A copy whose links lead from slides/ to where they led, and which has no ids."""
    made = copy(element)
    for link in made.select("a.headerlink"):
        link.decompose()
    for each in [made, *made.find_all(True)]:
        each.attrs.pop("id", None)
        for key in {"href", "src"} & each.attrs.keys():
            page = f"{name}.html" if each[key].startswith("#") else ""
            if not urlsplit(each[key]).scheme:
                each[key] = f"../{page}{each[key]}"
    return made


def rendered(slide: Slide, name: str, number: int, step: str) -> str:
    """HTML of a slide; step: "2 of 3" among those of one heading, or ""."""
    level = "h1" if slide.kind == "title" else "h2"
    link = tag("a", slide.heading, href=f"../{name}.html#{slide.place}".removesuffix("#"))
    heading = tag(level, link, *([" ", tag("small", step)] if step else []))
    parts = "\n".join(str(moved(part, name)) for part in slide.parts)
    return f'<section class="slide {slide.kind}" id="{number}">\n{heading}\n{parts}\n</section>'


def write(site: Path, name: str) -> Path:
    """Write site/slides/NAME.html from site/NAME.html."""
    page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser")
    made: list[str] = []
    for _, group in groupby(slides(page, name), attrgetter("heading")):
        alike = list(group)
        for i, slide in enumerate(alike, 1):
            step = f"{i} of {len(alike)}" if len(alike) > 1 else ""
            made.append(rendered(slide, name, len(made) + 1, step))
    sheets = "\n".join(str(moved(each, name)) for each in page.select("link[rel=stylesheet]"))
    path = site / "slides" / f"{name}.html"
    path.parent.mkdir(exist_ok=True)
    title = words(page.h1)
    path.write_text(PAGE.format(title=title, sheets=sheets, slides="\n".join(made)), "utf-8")
    return path


def write_all(app, exception) -> None:
    """Slides of the book's chapters that are whole, before style sheets are cut to what is used."""
    if exception or app.builder.name != "html":
        return
    site = Path(app.outdir)
    rmtree(site / "slides", ignore_errors=True)
    whole = app.env.found_docs - getattr(app.env, "failed_pages", {}).keys()
    for name in whole & {*CHAPTERS}:
        folder = write(site, name).parent
        for own in ("slides.css", "slides.js"):
            copy2(Path(__file__).with_name(own), folder)


def main() -> None:
    """Print the slides that the site has."""
    browser = pdf.find_browser()
    for name in CHAPTERS:
        printed = pdf.ROOT / "_build" / f"slides-{name}.pdf"
        pdf.print_page(browser, SITE / "slides" / f"{name}.html", printed)
        print(f"Slides as PDF: {printed}")


def setup(app):
    app.connect("build-finished", write_all, priority=400)  # light_site has the usual 500
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    main()
