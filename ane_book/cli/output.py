"""What a command prints: facts, as JSON or as text."""

from collections.abc import Callable
import json
from math import isfinite
from typing import Annotated

from ane_book.errors import printable
import typer

__all__ = ["AsJson", "show"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(facts: Callable[[], object], text: Callable[[], str], as_json: bool) -> None:
    """Print facts, or the text that is made of them.

    JSON has only ASCII, so that no terminal obeys it; text has its control characters spelled out.
    """
    if as_json:
        print(json.dumps(_plain(facts()), indent=2, allow_nan=False))
    else:
        print(printable(text()))


def _plain(value: object) -> object:
    """The same as JSON has it: without infinity and NaN, which become text."""
    if isinstance(value, dict):
        return {name: _plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
