"""Rows of text as aligned columns, for terminals."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from mlprogram.errors import printable


def table(rows: Iterable[Sequence[str]], indent: int = 0) -> str:
    """Rows as aligned columns; a column of numbers is set to the right. A cell is one line."""
    cells = [[printable(cell).replace("\n", r"\n") for cell in row] for row in rows]
    columns = [list(column) for column in zip(*cells, strict=True)]
    for column in columns:
        width = max(map(len, column))
        numeric = all(cell[:1].isdigit() for cell in column)
        column[:] = [cell.rjust(width) if numeric else cell.ljust(width) for cell in column]
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join(" " * indent + line for line in lines)


def headed(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Headings and what they say, which goes on below itself where a line is full."""
    left = max(len(heading) for heading, _ in rows) + 2
    cells: list[tuple[str, str]] = []
    for heading, text in rows:
        first, *others = wrap(
            text, max(width - left, 20), break_on_hyphens=False, break_long_words=False
        ) or [""]
        cells += [(heading, first), *(("", line) for line in others)]
    return table(cells)
