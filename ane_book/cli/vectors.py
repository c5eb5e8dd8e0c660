"""Read the texts and print the vectors of `ane-book embed`."""

from collections.abc import Iterable, Iterator
from itertools import islice
import json
import sys
from typing import TYPE_CHECKING

from ane_book.errors import printable

if TYPE_CHECKING:
    from ane_book.runtime import Embedder


AT_A_TIME = 256  # texts in a batch, so that output begins before all input is read


def print_vectors(
    embedder: "Embedder",
    words: Iterable[str],
    as_json: bool,
    strict: bool = False,
    prompt: str | None = None,
    dimensions: int | None = None,
) -> None:
    """Print a line for each text: its cosine to the first one, or an object with its vector.

    A text that is too long for the model is cut with a warning. strict: raises PromptTooLong.
    prompt, dimensions: as `Embedder.embed` takes them.
    """
    embedder.prompt(prompt), embedder.vectors([], dimensions)  # refused before anything is printed
    if not as_json:
        print("cosine of each text to the first:", flush=True)
        numbers = dimensions or embedder.size
        print(f"--json prints the {numbers} numbers of each", file=sys.stderr)
    texts, first, done = _texts(words), None, 0
    while batch := list(islice(texts, AT_A_TIME)):
        names = [f"text {done + i}" for i in range(1, len(batch) + 1)]
        done += len(batch)
        named = zip(batch, names, strict=True)
        vectors = embedder.vectors(
            [embedder.encode(text, name, not strict, prompt) for text, name in named], dimensions
        )
        first = vectors[0] if first is None else first
        for text, vector in zip(batch, vectors, strict=True):
            if as_json:
                # as few digits as tell one float32 from the next
                row = {"text": text, "embedding": [float(str(x)) for x in vector]}
                print(json.dumps(row, ensure_ascii=False))
            else:
                print(f"{vector @ first:6.3f}  {printable(text)}")
        sys.stdout.flush()


def _texts(words: Iterable[str]) -> Iterator[str]:
    """The words, each a text; a - stands for the lines of stdin."""
    for word in words:
        if word == "-":
            yield from (line.removesuffix("\n") for line in sys.stdin)
        else:
            yield word
