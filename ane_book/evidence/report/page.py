"""Render reports as one self-contained HTML file."""

from collections.abc import Sequence
from pathlib import Path

from ane_book.bundle.evidence import LEVELS
from ane_book.evidence.report.schema import Report
from jinja2 import Environment, StrictUndefined

FOLDER = Path(__file__).parent


def fragment(reports: Sequence[Report], top: int = 2) -> str:
    """The reports as an HTML fragment, under headings of level `top` and one below it.

    Their text is escaped, since anybody may send a report.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    environment.filters["seconds"] = lambda s: "" if s is None else f"{s:.2f}"
    environment.filters["rate"] = lambda r: "" if r is None else f"{r:.1f}"
    template = environment.from_string((FOLDER / "report.html.jinja").read_text("utf-8"))
    return template.render(reports=reports, levels=LEVELS, top=top)


def page(reports: Sequence[Report]) -> str:
    """The reports as a complete HTML page."""
    style = (FOLDER / "report.css").read_text("utf-8")
    head = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    title = '<meta name="viewport" content="width=device-width">\n<title>ANE Book: report</title>\n'
    return f"{head}{title}<style>\n{style}</style>\n<main>\n{fragment(reports)}\n</main>\n</html>\n"
