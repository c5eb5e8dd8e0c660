"""Cut a long text into overlapping windows, so that the cuts change no label.

In every layer a token sees W tokens on each side, so that after L layers its labels depend on R =
L * W tokens on each side, and on none beyond. A window is a call's tokens; the labels at least R
tokens from a cut are those that the whole text would give, and are kept. So windows overlap by 2 R.

Both a text and its tokens come in parts, as they are read; where they are divided changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
import re

from ane_book.errors import InvalidInput
import numpy as np

BLOCK = 1 << 16  # characters that are tokenised at once, at most

#: Up to the last place where a letter or digit stands before white space or punctuation. There
#: every tokenizer that splits texts into words begins a new one, and what is before is split as if
#: the text went on: only punctuation, white space and apostrophes depend on what follows them.
PLACE = re.compile(r'.*[^\W_](?=[\s,;:.!?()"。、，；：！？])', re.S)


@dataclass(frozen=True)
class Window:
    """A call: token ids (n,), the first one's number in the text, and whose labels are kept."""

    ids: np.ndarray
    start: int
    kept: slice


def windows(ids: Iterable[np.ndarray], most: int, reach: int) -> Iterator[Window]:
    """Yield the windows of a text, at most `most` tokens in each; its ids (n,) come in parts.

    Raises InvalidInput where a window would have nothing to keep.
    """
    pending: np.ndarray = np.zeros(0, np.int64)
    start = first = 0
    for part in ids:
        pending = np.concatenate([pending, part])
        while len(pending) > most:
            step = most - 2 * reach
            if step <= 0:
                raise InvalidInput(
                    f"a text of more than {most:,} tokens takes several calls, and calls of that "
                    f"length are too short for that: the labels of a token depend on {reach:,} on "
                    f"each side; convert the model with a context of {4 * reach:,} or more"
                )
            yield Window(pending[:most], start, slice(first, most - reach))
            pending, start, first = pending[step:], start + step, reach
    if len(pending):
        yield Window(pending, start, slice(first, len(pending)))


def blocks(parts: Iterable[str], most: int = BLOCK) -> Iterator[str]:
    """Regroup a text's parts into blocks of at most `most` characters, to be tokenised one by one.

    Blocks end where a word does. Text without such a place is cut after `most` characters, and may
    have other tokens at the cut.
    """
    pending = ""
    for part in parts:
        for i in range(0, len(part), most):
            pending += part[i : i + most]
            while (match := PLACE.match(pending, 0, most + 1)) or len(pending) > most:
                end = match.end() if match else most
                yield pending[:end]
                pending = pending[end:]
    if pending:
        yield pending
