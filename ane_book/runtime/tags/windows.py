"""A long text in windows whose seams change nothing.

In every layer a token sees W tokens on each side, so that after L layers its labels depend on R =
L * W tokens on each side, and on none beyond. A window is a call's tokens; what of it is at least R
from a cut is what the whole text would give, and is kept. So windows overlap by 2 R.

Both a text and its tokens come in parts, as they are read; how they are parted changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
import re

from ane_book.errors import InvalidInput
import numpy as np

__all__ = ["BLOCK", "Window", "blocks", "windows"]

BLOCK = 1 << 16  # characters that are tokenised at once, at most

#: Up to the last place where a letter or digit ends before white space or a mark. There every
#: tokenizer that parts texts into words begins a new one, and what is before is parted as if the
#: text went on: only marks, white space and apostrophes go by what follows them.
PLACE = re.compile(r'.*[^\W_](?=[\s,;:.!?()"。、，；：！？])', re.S)


@dataclass(frozen=True)
class Window:
    """A call: token ids (n,), the first of them the text's number `start`, and which are kept."""

    ids: np.ndarray
    start: int
    kept: slice


def windows(ids: Iterable[np.ndarray], most: int, reach: int) -> Iterator[Window]:
    """The windows of a text, at most `most` tokens in each; its ids (n,) come in parts.

    Raises InvalidInput where a window would have nothing to keep.
    """
    held: np.ndarray = np.zeros(0, np.int64)
    start = first = 0
    for part in ids:
        held = np.concatenate([held, part])
        while len(held) > most:
            step = most - 2 * reach
            if step <= 0:
                raise InvalidInput(
                    f"a text of more than {most:,} tokens takes several calls, and calls of that "
                    f"length are too short for that: the labels of a token depend on {reach:,} on "
                    f"each side; convert the model with a context of {4 * reach:,} or more"
                )
            yield Window(held[:most], start, slice(first, most - reach))
            held, start, first = held[step:], start + step, reach
    if len(held):
        yield Window(held, start, slice(first, len(held)))


def blocks(parts: Iterable[str], most: int = BLOCK) -> Iterator[str]:
    """A text that comes in parts, in others of at most `most` characters, tokenised one by one.

    They end where a word does; a stretch without such a place is cut after `most` characters,
    and may have other tokens there than it would have uncut.
    """
    held = ""
    for part in parts:
        for i in range(0, len(part), most):
            held += part[i : i + most]
            while (found := PLACE.match(held, 0, most + 1)) or len(held) > most:
                end = found.end() if found else most
                yield held[:end]
                held = held[end:]
    if held:
        yield held
