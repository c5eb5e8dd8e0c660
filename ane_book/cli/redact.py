"""`ane-book redact`: a file without what is private in it."""

from collections import Counter
from collections.abc import Iterator
import json
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.errors import printable
from ane_book.options import Recipe
import typer

if TYPE_CHECKING:
    from ane_book.runtime.tags import Span

__all__ = ["redact"]

#: ANSI's colours of kinds of spans, in the order in which they are met.
COLOURS = (41, 42, 43, 44, 45, 46, 101, 102, 104, 105)


@options.takes(Recipe, "quant", "experts")
def redact(
    file: Annotated[str, typer.Argument(help="A text in UTF-8; - is stdin.")],
    recipe: dict,
    model: options.Encoder = "privacy-filter",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each span instead.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the text with its spans marked instead.")
    ] = False,
    errors: Annotated[
        Literal["strict", "replace"],
        typer.Option(help="What is no UTF-8: refuse it, or keep those bytes and go on."),
    ] = "strict",
    precision: options.Precision = "fp16",
    context: options.TextLength = None,
    backend: options.BackendName = "auto",
    force: options.Force = False,
) -> None:
    """Replace what is private in a text by its kind; keep the rest.

    All else stays, byte for byte. Long texts go in windows whose seams change nothing.
    """
    from ane_book.runtime.tags import decode

    if as_json and dry_run:
        raise typer.BadParameter("--json and --dry-run are two ways to show the same")
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    text = decode(data, "stdin" if file == "-" else file, errors)  # before a model is converted
    how = precision, backend, force
    tagger = load(model, "token-classification", *how, context=context, **recipe)
    found = tagger.redact(text)
    if as_json:
        _write("".join(json.dumps(_row(span, text)) + "\n" for span in found.spans))
    else:
        _write("".join(_marked(text, found.spans)) if dry_run else found.text)
    counts = Counter(span.label for span in found.spans)
    listed = "".join(f", {count:,} {label}" for label, count in counts.most_common())
    print(f"{len(found.spans):,} spans{listed}", file=sys.stderr)


def _row(span: "Span", text: str) -> dict:
    return {
        "label": span.label,
        "start": span.start,
        "end": span.end,
        "byte_start": span.byte_start,
        "byte_end": span.byte_end,
        "score": round(span.score, 6),
        "text": text[span.start : span.end],
    }


def _marked(text: str, spans: "list[Span]") -> Iterator[str]:
    """The text for a terminal, spans coloured; [kind: text] where colours do not show."""
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    kinds: dict[str, int] = {}
    place = 0
    for span in spans:
        yield printable(text[place : span.start])
        colour = COLOURS[kinds.setdefault(span.label, len(kinds)) % len(COLOURS)]
        marks = (f"\x1b[{colour}m", "\x1b[0m") if colours else ("[", "]")
        own = f"{span.label}: {text[span.start : span.end]}"
        yield marks[0] + printable(own) + marks[1]
        place = span.end
    yield printable(text[place:])


def _write(text: str) -> None:
    """To stdout, every byte as it is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
