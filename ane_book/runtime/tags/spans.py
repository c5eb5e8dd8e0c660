"""From scores of labels to spans, by the best valid sequence of labels.

Of each kind of span there are four labels: B, I and E where it begins, goes on and ends, and S for
one token alone; O is outside of all. Most sequences are not valid, such as an E after an O. Of
those that are, Viterbi's algorithm finds the one of the largest sum of log probabilities.

Letters: N labels, K kinds of spans, n tokens.

References: Viterbi 1967 (IEEE Trans. Inf. Theory 13); Ratinov and Roth 2009 (CoNLL) on BIOES.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ane_book.runtime.tags.stretches import Stretch

LONGEST = 1 << 14  # tokens that may wait for the one that decides what they are


@dataclass(frozen=True)
class Span:
    """A stretch of a text, of one kind.

    start, end: in characters; byte_start, byte_end: in bytes of UTF-8. score: the mean over its
    tokens of the probability of their labels.
    """

    label: str
    start: int
    end: int
    byte_start: int
    byte_end: int
    score: float

    @property
    def replacement(self) -> str:
        """What stands in its place: "<PRIVATE_EMAIL>"."""
        return f"<{self.label.upper()}>"


class Viterbi:
    """The best sequence of labels of a text, whose tokens come a stretch at a time.

    labels: "O", and "B-", "I-", "E-" and "S-" of each kind. After a token no span is open, or one
    of a kind: these are 1 + K states, and the best way to each is kept. If LONGEST tokens are still
    undecided, they are labelled as if the text ended there.
    """

    def __init__(self, labels: Sequence[str]):
        kinds = dict.fromkeys(label[2:] for label in labels if label != "O")
        index = {label: i for i, label in enumerate(labels)}
        self._outside = index["O"]
        # The label of each part for each kind, (K,).
        self._parts = {
            part: np.array([index[f"{part}-{kind}"] for kind in kinds], np.int64) for part in "BIES"
        }
        self._begin()

    def _begin(self) -> None:
        """Set the state before the first token: no open span."""
        self._open = np.full(len(self._parts["B"]), -np.inf)  # (K,): minus that of no open span
        #: Of each token that waits: its label where it ends a way without an open span, the kind
        #: that is open before it (-1: none), and of each kind whether the token opens it, (K,).
        self._steps: list[tuple[int, int, np.ndarray]] = []

    def push(self, scores: np.ndarray) -> np.ndarray:
        """Take log probabilities (n, N) of the next tokens.

        Returns the labels of those tokens that no later one can change any more, int64.
        """
        scores = np.asarray(scores, np.float64)
        alone = np.concatenate([[self._outside], self._parts["S"]])
        flat = alone[scores[:, alone].argmax(axis=1)]  # the better of O and every S, (n,)
        flat_scores = scores[np.arange(len(scores)), flat].tolist()
        opens, goes_on, ends = (scores[:, self._parts[part]] for part in "BIE")
        decided = []
        for i, label in enumerate(flat.tolist()):
            self._step(label, flat_scores[i], opens[i], goes_on[i], ends[i])
            if len(self._steps) == LONGEST:
                decided.append(self._settled())
                if len(self._steps) == LONGEST:
                    decided.append(self.finish())
        return np.concatenate([*decided, self._settled()])

    def _step(
        self, flat: int, score: float, opens: np.ndarray, goes_on: np.ndarray, ends: np.ndarray
    ) -> None:
        """Add a token: its best label of O and S with its score, and the scores of B, I, E."""
        kind, closing = -1, self._open + ends
        if len(closing) and closing.max() > score:
            kind = int(closing.argmax())
            flat, score = int(self._parts["E"][kind]), closing[kind]
        going_on = self._open + goes_on
        self._steps.append((flat, kind, opens >= going_on))
        self._open = np.maximum(opens, going_on) - score

    def finish(self) -> np.ndarray:
        """Decide the labels of all tokens that wait; the text ends here."""
        labels = self._back(len(self._steps), -1)
        self._begin()
        return labels

    def _before(self, i: int, kind: int) -> int:
        """The kind open before the i-th token that waits (-1: none), if `kind` is open after it."""
        _, closes, opened = self._steps[i]
        if kind < 0:
            return closes
        return -1 if opened[kind] else kind

    def _back(self, count: int, kind: int) -> np.ndarray:
        """Trace back the labels of the first `count` waiting tokens; `kind` is open after them."""
        labels = np.empty(count, np.int64)
        for i in range(count - 1, -1, -1):
            before = self._before(i, kind)
            if kind < 0:
                labels[i] = self._steps[i][0]
            else:
                labels[i] = self._parts["B" if before < 0 else "I"][kind]
            kind = before
        return labels

    def _settled(self) -> np.ndarray:
        """Decide the labels of the tokens in which all ways that are still possible agree."""
        ways = {-1, *np.flatnonzero(np.isfinite(self._open)).tolist()}
        for i in range(len(self._steps) - 1, 0, -1):
            ways = {self._before(i, kind) for kind in ways}
            if len(ways) == 1:
                labels = self._back(i, ways.pop())
                self._steps = self._steps[i:]
                return labels
        return np.zeros(0, np.int64)


def find_spans(names: Sequence[str], stretch: "Stretch") -> Iterator[Span]:
    """The spans of a stretch of a text, in order and apart from each other.

    names: of the labels, whose sequence is valid. A span is widened to whole words, since half a
    word tells the other half. White space at both ends is not part of it, and neither is the text
    of an earlier span.
    """
    first, last = (
        [i for i, name in enumerate(names) if name[0] in which] for which in ("BS", "ES")
    )
    begins, stops = (np.flatnonzero(np.isin(stretch.labels, which)) for which in (first, last))
    words = np.append(np.flatnonzero(stretch.begins), len(stretch.begins))  # and where all end
    byte, place = stretch.byte_start, stretch.start
    for begin, stop in zip(begins, stops, strict=True):
        word, after = words[np.searchsorted(words, [begin, stop], "right") - [1, 0]]
        places = stretch.places[word:after]
        start, end = max(int(places[0, 0]), place), int(places[:, 1].max())
        own = stretch.part(start, end)
        start += len(own) - len(own.lstrip())
        end = max(start, end - (len(own) - len(own.rstrip())))
        if start == end:
            continue
        byte_start = byte + size(stretch.part(place, start))
        byte, place = byte_start + size(stretch.part(start, end)), end
        score = float(stretch.scores[begin : stop + 1].mean())
        yield Span(names[stretch.labels[begin]][2:], start, end, byte_start, byte, score)


def size(text: str) -> int:
    """Bytes of a text, those that are no UTF-8 too."""
    return len(text.encode("utf-8", "surrogateescape"))
