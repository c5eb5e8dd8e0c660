"""A long text in windows whose seams change nothing.

In every layer a token sees W tokens on each side, so that after L layers its labels depend on R =
L * W tokens on each side, and on none beyond. A window is a call's tokens; what of it is at least R
from a cut is what the whole text would give, and is kept. So windows overlap by 2 R.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import re

from ane_book.errors import InvalidInput

__all__ = ["BLOCK", "Window", "blocks", "windows"]

BLOCK = 1 << 16  # characters that are tokenised at once

#: Where a text is cut so that its tokens stay what they are: a line, or else a word, begins.
LINE = re.compile(r"(?<=\n)(?=\S)")
WORD = re.compile(r"(?<=\S)(?=\s)")


@dataclass(frozen=True)
class Window:
    """Tokens start to stop of a text, of which those from `first` to `last` are kept."""

    start: int
    stop: int
    first: int
    last: int


def windows(tokens: int, most: int, reach: int) -> Iterator[Window]:
    """The windows of a text of so many tokens, at most `most` in each.

    Raises InvalidInput where a window would have nothing to keep.
    """
    if tokens <= most:
        if tokens:
            yield Window(0, tokens, 0, tokens)
        return
    if most <= 2 * reach:
        raise InvalidInput(
            f"a text of {tokens:,} tokens takes several calls, and calls of {most:,} tokens are "
            f"too short for that: the labels of a token depend on {reach:,} on each side; convert "
            f"the model with a context of {4 * reach:,} or more"
        )
    start = kept = 0
    while kept < tokens:
        stop = min(start + most, tokens)
        last = tokens if stop == tokens else stop - reach
        yield Window(start, stop, kept, last)
        kept, start = last, last - reach


def blocks(text: str, most: int = BLOCK) -> Iterator[tuple[int, str]]:
    """The text in parts of at most `most` characters, each with its place.

    They end where a line does, if there is one in the second half, or else a word. Tokenizers of
    byte pairs split texts there anyway; a word longer than half a block may be cut in two, and then
    has other tokens there.
    """
    start = 0
    while len(text) - start > most:
        half = start + most // 2
        cut = start + most
        for place in (LINE, WORD):
            if found := [match.start() for match in place.finditer(text, half, cut)]:
                cut = found[-1]
                break
        yield start, text[start:cut]
        start = cut
    if start < len(text):
        yield start, text[start:]
