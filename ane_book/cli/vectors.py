"""Texts in, vectors out, at the terminal: what `ane-book embed` reads and prints."""

from collections.abc import Iterable, Iterator
from itertools import islice
import json
import sys
from typing import TYPE_CHECKING

from ane_book.errors import printable

if TYPE_CHECKING:
    from ane_book.runtime import Embedder

__all__ = ["print_vectors"]

AT_A_TIME = 256  # texts: what comes in lines goes out before all of them are there


def print_vectors(embedder: "Embedder", words: Iterable[str], as_json: bool) -> None:
    """Print a line for each text: its cosine to the first one, or an object with its vector."""
    if not as_json:
        numbers = f"--json prints the {embedder.size} numbers of each"
        print(f"cosine of each text to the first; {numbers}", file=sys.stderr)
    texts, first = _texts(words), None
    while batch := list(islice(texts, AT_A_TIME)):
        vectors = embedder.embed(batch)
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
