"""Scores of labels to spans: the best sequence of labels that makes sense.

Of each kind of span there are four labels: B, I and E where it begins, goes on and ends, and S for
one token alone; O is outside of all. Most sequences mean nothing, such as an E after an O. Among
those that do, Viterbi's algorithm finds the one of the largest sum of log probabilities.

Letters: N labels, n tokens.

References: Viterbi 1967 (IEEE Trans. Inf. Theory 13); Ratinov and Roth 2009 (CoNLL) on BIOES.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Span", "Viterbi", "find_spans", "log_softmax"]


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


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of labels, float32 (n, N)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class Viterbi:
    """The best sequence of labels of a text, whose tokens come a stretch at a time.

    labels: "O", and "B-", "I-", "E-" and "S-" of each kind. Of equal sequences it is that with the
    label that comes first, at the last token where they differ.
    """

    def __init__(self, labels: Sequence[str]):
        opens = np.array([label[0] in "BI" for label in labels])
        goes_on = np.array([label[0] in "IE" for label in labels])
        kinds = np.array([label[2:] for label in labels])
        same = (kinds[:, None] == kinds) & opens[:, None] & goes_on
        follows = same | (~opens[:, None] & ~goes_on)
        self._barred = np.where(follows, np.float32(0), np.float32(-np.inf))  # (from, to)
        self._best = np.where(goes_on, np.float32(-np.inf), np.float32(0))  # of what ends so
        self._ends = ~opens
        self._begun = False
        self._from: list[np.ndarray] = []  # (N,) for each token: the label before it

    def push(self, scores: np.ndarray) -> np.ndarray:
        """Take log probabilities (n, N) of the next tokens.

        Returns the labels of those tokens that no later one can change any more, int64.
        """
        for row in scores:
            if self._begun:
                paths = self._best[:, None] + self._barred
                before = paths.argmax(axis=0)
                best = paths[before, np.arange(len(before))]
            else:
                before, best = np.zeros(len(row), np.int64), self._best
                self._begun = True
            self._from.append(before)
            self._best = best + row
            self._best -= self._best.max()
        return self._settled()

    def finish(self) -> np.ndarray:
        """The labels of all other tokens; the text ends here."""
        if not self._from:
            return np.zeros(0, np.int64)
        last = int(np.where(self._ends, self._best, -np.inf).argmax())
        return self._back(len(self._from), last)

    def _back(self, count: int, label: int) -> np.ndarray:
        """The labels of the first `count` tokens that wait, of which the last has this one."""
        found = np.empty(count, np.int64)
        for i in range(count - 1, -1, -1):
            found[i] = label
            label = self._from[i][label]
        return found

    def _settled(self) -> np.ndarray:
        """Tokens before all ways that are still open have one label in common."""
        ways = np.flatnonzero(np.isfinite(self._best))
        for i in range(len(self._from) - 1, 0, -1):
            ways = np.unique(self._from[i][ways])
            if len(ways) == 1:
                found = self._back(i, int(ways[0]))
                self._from = self._from[i:]
                return found
        return np.zeros(0, np.int64)


def find_spans(
    labels: Sequence[str],
    chosen: np.ndarray,
    scores: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    text: str,
) -> list[Span]:
    """The spans of a text, in order and apart from each other.

    chosen: the label of each token (n,), a sequence that makes sense. scores: its probability (n,).
    starts, ends: where tokens lie in the text, in characters. White space at both ends of a span is
    not part of it, and neither is what an earlier span has.
    """
    found, byte, place = [], 0, 0
    first = np.flatnonzero([labels[i][0] in "BS" for i in range(len(labels))])
    last = np.flatnonzero([labels[i][0] in "ES" for i in range(len(labels))])
    begins, stops = (np.flatnonzero(np.isin(chosen, which)) for which in (first, last))
    for begin, stop in zip(begins, stops, strict=True):
        start, end = max(int(starts[begin]), place), int(ends[begin : stop + 1].max())
        own = text[start:end]
        start += len(own) - len(own.lstrip())
        end = max(start, end - (len(own) - len(own.rstrip())))
        if start == end:
            continue
        byte_start = byte + _bytes(text[place:start])
        byte, place = byte_start + _bytes(text[start:end]), end
        score = float(scores[begin : stop + 1].mean())
        found.append(Span(labels[chosen[begin]][2:], start, end, byte_start, byte, score))
    return found


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
