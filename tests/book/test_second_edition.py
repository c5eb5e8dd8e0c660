"""The second edition: where old pages went, how long pages are, what the course names."""

import re

from _site import PAGES, ROOT, TOC, each_page
import pytest
import slides

APPENDICES = "alphaupper"  # how their letters are called in _toc.yml
CHAPTERS = [c["file"] for part in TOC["parts"]
            if "numbered" in part and part.get("style") != APPENDICES
            for c in part["chapters"]]  # fmt: skip
MOST_MINUTES = {"a page": 20, "the numbered chapters": 180}
MOST_PAGES = 31  # the first one among them

WORDS_PER_MINUTE = 230
CELL = re.compile(r"^```\{code-cell\}.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Cells that the site hides, or folds away.
HIDDEN = re.compile(r"remove-cell|remove-input|hide-cell|hide-input")
OPTIONS = re.compile(r"\A(?:---\n.*?^---$|(?::[\w-]+:[^\n]*\n)*)", re.MULTILINE | re.DOTALL)
#: Settings, cells and other blocks, comments, options; what stands in a box is prose.
NOT_PROSE = re.compile(
    r"\A---\n.*?^---$|^```(?:\w|\{code-cell|\{figure|\{image).*?^```$|<!--.*?-->|^:[\w-]+:.*?$",
    re.MULTILINE | re.DOTALL,
)
WORD = re.compile(r"\S*\w\S*")


def source(page: str) -> str:
    return (ROOT / "book" / f"{page}.md").read_text("utf-8")


def minutes(source: str) -> float:
    """How long a page is read: its prose, and its code in sight."""
    cells = [cell for cell in CELL.findall(source) if not HIDDEN.search(OPTIONS.match(cell)[0])]
    code = [line for cell in cells for line in OPTIONS.sub("", cell).splitlines()]
    text = "\n".join([NOT_PROSE.sub("", source), *code])
    return len(WORD.findall(text)) / WORDS_PER_MINUTE


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows, without its head."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return cells[1:]


class TestReading:
    @each_page
    def test_a_page_is_read_in_twenty_minutes(self, page):
        assert minutes(source(page)) <= MOST_MINUTES["a page"]

    def test_the_chapters_are_read_in_three_hours(self):
        total = sum(minutes(source(page)) for page in CHAPTERS)
        assert len(CHAPTERS) == 13 and total <= MOST_MINUTES["the numbered chapters"]
        assert len(PAGES) <= MOST_PAGES


class TestCourse:
    COURSE = source("course")
    SESSIONS = rows(COURSE)

    def test_there_are_eight_sessions_over_all_chapters(self):
        assert [row[0] for row in self.SESSIONS] == [str(n) for n in range(1, 9)]
        read_in = re.findall(r"\]\(([\w-]+)\.md\)", "".join(row[1] for row in self.SESSIONS))
        assert {*read_in} == {*CHAPTERS, "one-file"} and len(read_in) == 14

    @pytest.mark.parametrize("session", SESSIONS, ids=lambda row: row[0])
    def test_a_sessions_exercises_are_in_its_chapters_and_graded(self, session):
        text = "".join(source(page) for page in re.findall(r"\]\(([\w-]+)\.md\)", session[1]))
        for cell, grade in ((session[2], "easy"), (session[3], "hard")):
            labels = re.findall(r"\{ref\}`[^<`]+ <([\w-]+)>`", cell)
            assert labels
            for label in labels:
                title, asked = re.search(
                    rf"\{{exercise\}} ?(.*)\n:label: {label}\n+(.*)", text
                ).groups()
                assert f"({grade}" in f"{title} {asked}".lower(), label
                assert f"{{solution-start}} {label}\n" in text

    def test_it_links_to_the_slides(self):
        linked = re.findall(r'href="slides/([\w-]+)\.html"', self.COURSE)
        assert tuple(linked) == slides.CHAPTERS
