"""A text on its way: what was read and cannot be given back yet.

Letters: n tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Stretch", "Waiting", "size"]


@dataclass(frozen=True)
class Stretch:
    """A part of a text that no span crosses at either end, and its tokens.

    start, byte_start: where it begins in the text, in characters and bytes. labels, scores: of each
    token the number of its label and that label's probability, (n,). places: where each starts and
    ends in the text, in characters, (n, 2).
    """

    text: str
    start: int
    byte_start: int
    labels: np.ndarray
    scores: np.ndarray
    places: np.ndarray

    def part(self, start: int, end: int) -> str:
        """What is between two places of the text."""
        return self.text[start - self.start : end - self.start]


class Waiting:
    """Text and tokens that were read, with what is known of them, until a stretch is complete.

    names: of the labels.
    """

    def __init__(self, names: Sequence[str]):
        self._closes = np.array([name[0] in "OES" for name in names])
        self._start = self._byte = 0
        self._text: list[str] = []
        self._places: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
        self._known: list[tuple[np.ndarray, np.ndarray]] = []  # labels and scores

    def read(self, text: str, places: np.ndarray) -> None:
        """More of the text, and where its tokens are."""
        self._text.append(text)
        self._places.append(places)

    def settle(self, labels: np.ndarray, scores: np.ndarray) -> Stretch | None:
        """Take labels and scores of the next tokens; what they complete, if they do."""
        self._known.append((labels, scores))
        if not self._closes[labels].any():  # a long span is put together once, at its end
            return None
        labels = np.concatenate([labels for labels, _ in self._known])
        places = np.concatenate(self._places)
        self._places = [places]
        # It ends before a token that shares no character with the one before it.
        apart = places[1 : len(labels) + 1, 0] >= places[: len(labels), 1][: len(places) - 1]
        fits = np.flatnonzero(self._closes[labels[: len(apart)]] & apart)
        return self._cut(int(fits[-1]) + 1) if len(fits) else None

    def _cut(self, count: int) -> Stretch:
        """The first `count` tokens, and the text up to the next one."""
        text, (places,) = "".join(self._text), self._places
        cut = int(places[count, 0]) - self._start
        self._text, rest = [text[cut:]], places[count:]
        stretch = self._stretch(text[:cut], count, places)
        self._places = [rest]
        return stretch

    def finish(self) -> Stretch:
        """All that is left; the text ends here."""
        places = np.concatenate(self._places)
        return self._stretch("".join(self._text), len(places), places)

    def _stretch(self, text: str, count: int, places: np.ndarray) -> Stretch:
        empty = np.zeros(0, np.int64), np.zeros(0, np.float32)
        labels, scores = (
            np.concatenate(column) for column in zip(empty, *self._known, strict=True)
        )
        found = Stretch(
            text, self._start, self._byte, labels[:count], scores[:count], places[:count]
        )
        self._known = [(labels[count:], scores[count:])]
        self._start += len(text)
        self._byte += size(text)
        return found


def size(text: str) -> int:
    """Bytes of a text, those that are no UTF-8 too."""
    return len(text.encode("utf-8", "surrogateescape"))
