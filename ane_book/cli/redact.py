"""`ane-book redact`: replace private data in a file."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from io import BufferedReader
import json
import os
from pathlib import Path
import shutil
import stat
import sys
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, cast

from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.errors import InvalidInput
from mlprogram.cli.commands import told_to_end
from mlprogram.cli.options import Precision
from mlprogram.files import written_whole
from mlprogram.progress import progress_bar
import typer

if TYPE_CHECKING:
    from ane_book.runtime.tags import Span, Tagger

CHUNK = 1 << 16  # bytes to read at once

Show = Callable[[str, "Span | None"], str]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Write here, whole or not at all. FILE itself may be given; `> FILE` would lose it.  "
        "[default: stdout]",
    ),
]

Context = Annotated[
    int | None,
    typer.Option(
        min=3, help="Most tokens of a call; a text may have more.  [default: the model's own]"
    ),
]


@options.takes("Recipe", "quant", "experts")
def redact(
    file: Annotated[str, typer.Argument(help="A text in UTF-8; - is stdin.")],
    recipe: dict,
    model: options.Encoder = "privacy-filter-small",
    out: Out = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each span instead.")
    ] = False,
    errors: Annotated[
        Literal["strict", "replace"],
        typer.Option(help="What is no UTF-8: refuse it, or keep those bytes and go on."),
    ] = "strict",
    precision: Precision = "fp16",
    context: Context = None,
    backend: options.BackendName = "auto",
) -> None:
    """Replace what is private in a text by its kind; keep the rest.

    All else stays, byte for byte. Long texts go in windows whose seams change nothing, and are
    written as soon as nothing that follows can change them: a call's tokens behind what was read.
    """
    name = "stdin" if file == "-" else file
    with _target(out) as target, _source(file) as source:
        _check(source, name, target, errors)  # before a model is converted
        tagger = load(model, "token-classification", precision, backend, context=context, **recipe)
        show = _row if as_json else _replaced
        counts = _rewrite(tagger, source, name, target, errors, show)
    listed = "".join(f", {count:,} {label}" for label, count in counts.most_common())
    print(f"{counts.total():,} span{'s' * (counts.total() != 1)}{listed}", file=sys.stderr)


def _rewrite(
    tagger: "Tagger", source: BufferedReader, name: str, target: BinaryIO, errors: str, show: Show
) -> Counter:
    """Write each piece of a text as `show` renders it; return the number of spans by kind."""
    from ane_book.runtime.tags import decode

    def chunks() -> Iterator[bytes]:
        while chunk := source.read1(CHUNK):  # as soon as some bytes are there
            yield chunk
            target.flush()  # what is settled, before more is waited for

    counts: Counter[str] = Counter()
    done, size = 0, _size(source)
    seen = source.isatty() or target.isatty()  # a bar would come between what is typed or shown
    with nullcontext(lambda *_: None) if seen else progress_bar() as progress:
        for text, span in tagger.stream(decode(chunks(), name, errors)):
            target.write(_bytes(show(text, span)))
            counts.update([span.label] if span else [])
            done += len(_bytes(text))
            if done != size:
                progress("redacting", done, size)
        target.flush()
    return counts


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- what is shown of a piece of the text ---------------------------------------------------------


def _replaced(text: str, span: "Span | None") -> str:
    return span.replacement if span else text


def _row(text: str, span: "Span | None") -> str:
    """A line of JSON for a span."""
    if span is None:
        return ""
    row = asdict(span) | {"score": round(span.score, 6), "text": text}
    return json.dumps(row) + "\n"


# --- what is read and written ---------------------------------------------------------------------


@contextmanager
def _source(file: str) -> Iterator[BufferedReader]:
    """Open the file to read; - is stdin."""
    if file == "-":
        yield cast(BufferedReader, sys.stdin.buffer)  # as typeshed does not say
    else:
        with open(file, "rb") as opened:
            yield opened


@contextmanager
def _target(out: Path | None) -> Iterator[BinaryIO]:
    """Open the output: stdout, or a file that gets its name when all is written."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    out = Path(os.path.realpath(out))  # what a link stands for, not the link
    if out.exists() and not out.is_file():
        raise InvalidInput(f"{out} is no file; --out takes one, for all else redirect the output")
    try:
        with written_whole(out) as unfinished, told_to_end(), unfinished.open("wb") as opened:
            if out.exists():
                shutil.copymode(out, unfinished)
            yield opened
    except OSError as error:
        if error.filename is None or error.filename.startswith(f"{out}."):  # the unfinished one
            raise OSError(error.errno, error.strerror, str(out)) from None
        raise


def _size(source: BufferedReader) -> int | None:
    """The bytes that can be read; None for a pipe."""
    own = os.fstat(source.fileno())
    return own.st_size - source.tell() if stat.S_ISREG(own.st_mode) else None


def _check(source: BufferedReader, name: str, target: BinaryIO, errors: str) -> None:
    """Refuse a file that is its own output, or is not text, before anything is written.

    A pipe cannot be checked before it is read.
    """
    from ane_book.runtime.tags import decode

    if _size(source) is None:
        return
    if os.path.samestat(os.fstat(source.fileno()), os.fstat(target.fileno())):
        raise InvalidInput(f"{name} is its own output, and would be lost; --out FILE can do that")
    if errors == "strict":
        start = source.tell()
        for _ in decode(iter(lambda: source.read1(CHUNK), b""), name):
            pass
        source.seek(start)
