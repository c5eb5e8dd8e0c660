"""`ane-book embed`: vectors of texts, and how near each is to the first."""

from collections.abc import Iterable, Iterator
from itertools import islice
import json
import sys
from typing import Annotated

from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.errors import printable
from mlprogram.cli.options import Precision
import typer

AT_A_TIME = 256  # texts in a batch, so that output begins before all input is read


@options.takes("Recipe", "quant")
def embed(
    texts: Annotated[list[str], typer.Argument(help="Texts; - stands for the lines of stdin.")],
    recipe: dict,
    model: options.Encoder = "all-minilm-l6-v2",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each: text and embedding.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a text that is too long, instead of cutting.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="What stands before each text: a name of the model's prompts, or a text.  "
            "[default: the model's own default]"
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(min=1, help="Cut vectors to so many numbers, and scale them to length 1."),
    ] = None,
    precision: Precision = "fp16",
    context: options.TextLength = None,
    backend: options.BackendName = "auto",
) -> None:
    """Make vectors of texts; print the cosine of each to the first.

    A text that is too long for the model is cut with a warning.
    """
    embedder = load(model, "embedding", precision, backend, context=context, **recipe)
    embedder.prompt(prompt), embedder.vectors([], dimensions)  # refused before anything is printed
    if not as_json:
        print("cosine of each text to the first:", flush=True)
        numbers = dimensions or embedder.size
        print(f"--json prints the {numbers} numbers of each", file=sys.stderr)
    lines, first, done = _lines(texts), None, 0
    while batch := list(islice(lines, AT_A_TIME)):
        names = [f"text {done + i}" for i in range(1, len(batch) + 1)]
        done += len(batch)
        named = zip(batch, names, strict=True)
        ids = [embedder.encode(text, name, not strict, prompt) for text, name in named]
        vectors = embedder.vectors(ids, dimensions)
        first = vectors[0] if first is None else first
        for text, vector in zip(batch, vectors, strict=True):
            if as_json:
                # as few digits as tell one float32 from the next
                row = {"text": text, "embedding": [float(str(x)) for x in vector]}
                print(json.dumps(row, ensure_ascii=False))
            else:
                print(f"{vector @ first:6.3f}  {printable(text)}")
        sys.stdout.flush()


def _lines(words: Iterable[str]) -> Iterator[str]:
    """The words, each a text; a - stands for the lines of stdin."""
    for word in words:
        if word == "-":
            yield from (line.removesuffix("\n") for line in sys.stdin)
        else:
            yield word
