"""What a page of the book asks of its reader, counted in its source."""

from dataclasses import dataclass
import re

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
SHOWS = re.compile(r"\b(?:print|assert|glue|display)\b")
FIGURE = re.compile(r"^\s+name: fig-|^```\{figure\}", re.MULTILINE)
#: A section or a paragraph that says that it is worked by hand.
BY_HAND = re.compile(r"^(?:#+ .*\bby hand\b|\*\*By hand\b|By hand\b)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """words: prose and code in sight; code, shows: lines of code in sight, and those of them that
    print or assert; by_hand: worked examples."""

    words: int
    code: int
    shows: int
    figures: int
    by_hand: int

    @property
    def minutes(self) -> float:
        return self.words / WORDS_PER_MINUTE


def read(source: str) -> Reading:
    cells = [cell for cell in CELL.findall(source) if not HIDDEN.search(OPTIONS.match(cell)[0])]
    code = [line for cell in cells for line in OPTIONS.sub("", cell).splitlines() if line.strip()]
    prose = NOT_PROSE.sub("", source)
    return Reading(
        words=len(WORD.findall(prose)) + len(WORD.findall("\n".join(code))),
        code=len(code),
        shows=sum(bool(SHOWS.search(line)) for line in code),
        figures=len(FIGURE.findall(source)),
        by_hand=len(BY_HAND.findall(prose)),
    )
