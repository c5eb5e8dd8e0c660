"""Buffer the part of a text that was read, but whose labels are not final yet.

Letters: n tokens, N labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import re
from unicodedata import category

from ane_book.runtime.tags.spans import Viterbi, size
import numpy as np

#: A letter or digit of a script that separates words by white space or punctuation. Thai to Khmer,
#: Chinese and Japanese do not; Korean does, but hangs particles on names.
LETTER = re.compile(
    r"[^\W_\u0e00-\u10ff\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff]"
)
LONGEST = 1000  # characters of a word
JOINER = "\N{ZERO WIDTH JOINER}"  # of emoji, and of letters


@dataclass(frozen=True)
class Stretch:
    """A part of a text that no span and no word crosses at either end, and its tokens.

    start, byte_start: where it begins in the text, in characters and bytes. labels, scores: of each
    token the number of its label and that label's probability, (n,). places: where each starts and
    ends in the text, in characters, (n, 2). begins: whether a word begins with it, bool (n,).
    """

    text: str
    start: int
    byte_start: int
    labels: np.ndarray
    scores: np.ndarray
    places: np.ndarray
    begins: np.ndarray

    def part(self, start: int, end: int) -> str:
        """The text between two places."""
        return self.text[start - self.start : end - self.start]


class Waiting:
    """Collects text, tokens and labels until they complete a stretch.

    names: of the labels.
    """

    def __init__(self, names: Sequence[str]):
        self._best = Viterbi(names)
        self._closes = np.array([name[0] in "OES" for name in names])
        self._start = self._byte = self._read = 0
        self._text: list[str] = []
        self._places: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
        self._begins: list[np.ndarray] = [np.zeros(0, bool)]
        self._rows: list[np.ndarray] = [np.zeros((0, len(names)), np.float32)]
        self._labels: list[np.ndarray] = [np.zeros(0, np.int64)]  # of the first ones

    def read(self, text: str, places: np.ndarray) -> None:
        """Add more of the text, from where a word begins, and the places of its tokens."""
        self._text.append(text)
        self._places.append(places)
        self._begins.append(begin_words(text, places - self._read))
        self._read += len(text)

    def settle(self, rows: np.ndarray) -> Stretch | None:
        """Add the log probabilities (n, N) of the next tokens' labels; returns the stretch that is
        now complete."""
        labels = self._best.push(rows)
        self._rows.append(rows)
        self._labels.append(labels)
        if not self._closes[labels].any():  # a long span is put together once, at its end
            return None
        labels = np.concatenate(self._labels)
        self._begins = [begins] = [np.concatenate(self._begins)]
        following = begins[1 : len(labels) + 1]
        fits = np.flatnonzero(self._closes[labels[: len(following)]] & following)
        return self._cut(int(fits[-1]) + 1) if len(fits) else None

    def finish(self) -> Stretch:
        """The stretch of all that is left; the text ends here."""
        self._labels.append(self._best.finish())
        return self._cut(sum(map(len, self._places)))

    def _cut(self, count: int) -> Stretch:
        """Cut off the first `count` tokens, with the text up to the next one."""
        text = "".join(self._text)
        places, begins = np.concatenate(self._places), np.concatenate(self._begins)
        labels, rows = np.concatenate(self._labels), np.concatenate(self._rows)
        scores = np.exp(rows[np.arange(count), labels[:count]])
        end = int(places[count, 0]) - self._start if count < len(places) else len(text)
        stretch = Stretch(
            text=text[:end],
            start=self._start,
            byte_start=self._byte,
            labels=labels[:count],
            scores=scores,
            places=places[:count],
            begins=begins[:count],
        )
        self._text, self._places, self._begins = [text[end:]], [places[count:]], [begins[count:]]
        self._labels, self._rows = [labels[count:]], [rows[count:]]
        self._start += end
        self._byte += size(stretch.text)
        return stretch


def begin_words(text: str, places: np.ndarray) -> np.ndarray:
    """Whether a word begins with each token of a text, bool (n,); places as `Stretch` has them.

    It never does with one that shares a character with the token before it. It always does with the
    first token, and with one `LONGEST` characters into a word, so that long words are not buffered.
    """
    begins: list[bool] = []
    word = end = 0  # where this word begins, and the token before ends
    for start, stop in places.tolist():
        far = start - word >= LONGEST
        begins.append(not begins or (start >= end and (far or not _inside(text, start))))
        word, end = start if begins[-1] else word, stop
    return np.array(begins, bool)


def _inside(text: str, place: int) -> bool:
    """Whether a place lies in the middle of a word, or of what is drawn as one sign."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if category(after)[0] == "M" or JOINER in (before, after):
        return True
    return bool(LETTER.match(after)) and bool(LETTER.match(before) or category(before) == "Mn")
