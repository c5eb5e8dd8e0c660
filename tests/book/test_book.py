"""The book's files: notebooks that match its pages, and the site that `make book` has left.

Without a site in _build/html its tests are skipped. What a browser makes of it: test_book_seen.py.
"""

import ast
from functools import cache
from pathlib import Path
import re
from urllib.parse import unquote, urlsplit

from _site import PAGES, ROOT, SITE, each_page, needs_site
from ane_book_pages import sources
from bs4 import BeautifulSoup, NavigableString
import jupytext
from mlprogram.ane.cost import chips
import nbformat
import pytest
import slides
import to_notebooks
import yaml

HEADERS = {page: (ROOT / "book" / f"{page}.md").read_text()[:500] for page in PAGES}
NOTEBOOK_PAGES = [page for page in PAGES if "\nkernelspec:" in HEADERS[page]]

CLAIMS = {*sources.everything(), *chips()}

each_notebook = pytest.mark.parametrize("page", NOTEBOOK_PAGES)


@cache
def html(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def article(page: str):
    return html(SITE / f"{page}.html").find("article")


MOVED = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]["redirects"]


@needs_site
@pytest.mark.parametrize("old", MOVED)
def test_a_page_that_moved_is_found_at_its_new_address(old):
    page, _, place = MOVED[old].partition("#")
    assert old not in PAGES and page.removesuffix(".html") in PAGES
    assert f'href="{MOVED[old]}"' in (SITE / f"{old}.html").read_text()
    assert not place or html(SITE / page).find(id=place)


# --- notebooks/


def cells(notebook) -> list[tuple[str, str, dict]]:
    return [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]


@each_notebook
def test_notebook_is_what_is_made_of_the_page(page):
    path = ROOT / "notebooks" / f"{page}.ipynb"
    assert path.exists(), f"{path} is missing: run `make notebooks`"
    ours = to_notebooks.notebook(ROOT / "book" / f"{page}.md", set(NOTEBOOK_PAGES))
    theirs = cells(nbformat.read(path, as_version=4))
    assert theirs == cells(ours), f"book/{page}.md and {path.name} differ: run `make notebooks`"


@each_notebook
def test_notebook_has_the_pages_code(page):
    notebook = nbformat.read(ROOT / "notebooks" / f"{page}.ipynb", as_version=4)
    ours = jupytext.read(ROOT / "book" / f"{page}.md")
    code = [cell for cell in cells(ours) if cell[0] == "code"]
    assert [cell for cell in cells(notebook) if cell[0] == "code"] == code


OPENS = {"Session", "Tagger", "Embedder", "load"}


def opened(code: str) -> list[str]:
    """Calls that open a model on whatever this machine has, Core ML where that is."""
    calls = [call for call in ast.walk(ast.parse(code)) if isinstance(call, ast.Call)]
    found = []
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        name = ast.unparse(call.func).removeprefix("ane_book.")
        if name in OPENS and not {"backend", "precision"} & given:
            found.append(ast.unparse(call))
    return found


@each_notebook
def test_a_page_says_what_runs_its_models(page):
    """What a page asserts of the executor's numbers is not asserted of an engine's, on a Mac."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{page}.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert not [call for source in code if source[0] not in "!%" for call in opened(source)]


MYST = re.compile(r"\{[\w:-]+\}`|^:::|^```\{|^\([\w-]+\)=$", re.M)


@each_notebook
def test_notebook_has_no_markup_that_jupyter_does_not_show(page):
    notebook = nbformat.read(ROOT / "notebooks" / f"{page}.ipynb", as_version=4)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    left = [found for text in prose for found in MYST.findall(text)]
    assert not left, left
    assert not [text for text in prose if re.search(r"\]\([\w-]+\.md", text)]


@each_page
def test_terms_are_in_the_glossary(page):
    """Sphinx warns of one that is not, after the minutes in which all pages run."""
    glossary = (ROOT / "book" / "glossary.md").read_text("utf-8")
    lines = glossary.partition("{glossary}")[2].splitlines()
    terms = {line.strip("`").lower() for line in lines if re.match(r"\S", line)}
    text = (ROOT / "book" / f"{page}.md").read_text("utf-8")
    used = re.findall(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`", text)
    assert not [term for term in used if term.lower() not in terms]


@each_page
def test_claims_are_named_by_links(page):
    """Of one that does not exist Sphinx warns after those minutes, too."""
    text = (ROOT / "book" / f"{page}.md").read_text("utf-8")
    assert set(re.findall(r"\{claim\}`([^`\n]+)`", text)) <= CLAIMS
    assert not re.findall(r"(?<![\w`])claims? `[\w-]+`", text)


def test_every_notebook_has_a_page():
    found = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert found == set(NOTEBOOK_PAGES)


# --- the site, as files


def local_target(page: Path, link: str) -> tuple[Path, str] | None:
    """The (file, anchor) that a link on a page leads to, or None if it leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return path, unquote(parts.fragment)


@cache
def anchors(page: Path) -> set[str]:
    return {tag["id"] for tag in html(page).find_all(id=True)}


def links(page: Path) -> list[str]:
    found = html(page).find_all(["a", "link", "img", "script", "source"])
    links = [tag.get("href") or tag.get("src") for tag in found]
    return [link for link in links if link and not link.startswith(("data:", "javascript:"))]


DECKS = [f"slides/{name}" for name in slides.CHAPTERS]


@needs_site
@pytest.mark.parametrize("page", [*PAGES, *DECKS, "genindex", "search"])
def test_internal_links_lead_somewhere(page):
    path, broken = SITE / f"{page}.html", []
    for link in links(path):
        if (target := local_target(path, link)) is None:
            continue
        file, anchor = target
        if not file.is_file():
            broken.append(f"{link}: no such file")
        elif anchor and file.suffix == ".html" and anchor not in anchors(file):
            broken.append(f"{link}: no such place on that page")
    assert not broken, broken


@needs_site
@pytest.mark.parametrize("page", [*PAGES, *DECKS])
def test_page_loads_nothing_from_elsewhere(page):
    tags = html(SITE / f"{page}.html").find_all(["script", "link", "img", "iframe", "source"])
    sources = [tag.get("src") or tag.get("href") or "" for tag in tags]
    outside = [source for source in sources if urlsplit(source).netloc]
    assert not outside, f"{outside}: a page has to need nothing but its site"


@needs_site
@each_page
def test_no_cell_raised_an_exception(page):
    shown = article(page).select(".output.traceback")
    wanted = article(page).select('[class*="tag_raises-exception"] .output.traceback')
    assert [output.get_text() for output in shown if output not in wanted] == []


@needs_site
def test_every_chapter_ran():
    rows = [[cell.get_text() for cell in row("td")] for row in article("reports").select("tr")]
    succeeded = {cells[0] for cells in rows if cells and cells[-1] == "✅"}
    assert succeeded == set(NOTEBOOK_PAGES)


@needs_site
@each_page
def test_images_are_described(page):
    """An `alt` that says what the picture shows, and a caption for each picture a cell drew."""
    for image in article(page).find_all("img"):
        source, alt = image["src"], image.get("alt", "")
        assert len(alt.split()) >= 4 and Path(source).stem not in alt, (
            f'{source}: alt="{alt}" does not say what it shows: set `mystnb: image: alt:`'
        )
        caption = image.find_parent("figure") and image.find_parent("figure").find("figcaption")
        assert caption and caption.get_text(strip=True), (
            f"{source} has no caption: set `mystnb: figure: caption:`"
        )


@needs_site
@each_page
def test_no_markup_is_left_over(page):
    """What the parser did not take for markup, such as a formula, stands on the page as it is."""
    shown = article(page).find_all(string=lambda text: type(text) is NavigableString)
    prose = "".join(text for text in shown if not text.find_parent(["pre", "code"]))
    left = re.findall(r"\$\$|:::|```|\{[a-z:]+\}`|\[\]\(|%pip.*", prose)
    assert not left
