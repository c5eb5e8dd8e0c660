"""Texts to labels of tokens, and to spans: a tagger's bundle at work.

    tagger = ane_book.load("privacy-filter")
    found = tagger.redact("Write to ann@example.org.")
    found.text, found.spans    # "Write to <PRIVATE_EMAIL>.", [Span(...)]

    windows.py    long texts, in calls that overlap
    spans.py      labels that make sense, and the spans of the text that they mark

Letters: C hidden size, T tokens of a call, N labels, n tokens of a text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import re

from ane_book.errors import InvalidBundle, InvalidInput, InvalidType
from ane_book.host import text_mask
from ane_book.runtime.encoder import Encoder
from ane_book.runtime.tags.spans import Span, Viterbi, find_spans, log_softmax
from ane_book.runtime.tags.windows import Window, blocks, windows
from ane_book.text.process import check_text
import numpy as np

__all__ = ["Redaction", "Span", "Tag", "Tagger", "decode"]

ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, as Python keeps them in a str


@dataclass(frozen=True)
class Tag:
    """A token's place in the text, in characters, its label, and the label's probability."""

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class Redaction:
    """A text with what is private replaced, and the spans of the text as it was."""

    text: str
    spans: list[Span]


class Tagger(Encoder):
    """Labels of tokens and spans of texts, from a bundle."""

    task = "token-classification"

    @property
    def labels(self) -> list[str]:
        """What a token may be, in the order of its scores."""
        return self.bundle.manifest.tags.labels

    @property
    def reach(self) -> int:
        """How many tokens on each side the labels of a token depend on: those of all layers."""
        manifest = self.bundle.manifest
        return manifest.shards[-1].layers[1] * manifest.tags.window

    def redact(self, text: str) -> Redaction:
        """The text with every span replaced by its kind, "<PRIVATE_EMAIL>"; all else as it is."""
        spans, parts, place = self.spans(text), [], 0
        for span in spans:
            parts += [text[place : span.start], span.replacement]
            place = span.end
        return Redaction("".join([*parts, text[place:]]), spans)

    def spans(self, text: str) -> list[Span]:
        """What is private in a text, in order; spans are apart from each other.

        A text may have any length: what is longer than a call goes in windows that overlap, and its
        labels are those that one long call would give. Bytes that `decode` let pass are, to the
        model, signs that cannot be read.

        Raises InvalidType (a TypeError too) for what is no str, and InvalidInput.
        """
        return find_spans(self.labels, *self._tagged(text), text)

    def tag(self, text: str) -> list[Tag]:
        """Every token of a text with its label, of the best sequence that makes sense."""
        chosen, scores, starts, ends = self._tagged(text)
        each = zip(starts.tolist(), ends.tolist(), chosen.tolist(), scores.tolist(), strict=True)
        return [Tag(start, end, self.labels[i], score) for start, end, i, score in each]

    def _tagged(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of every token (n,): label, the label's probability, and where it starts and ends."""
        ids, starts, ends = self._encode(text)
        best, scores, labels = Viterbi(self.labels), [], []
        waiting = np.zeros((0, len(self.labels)), np.float32)

        def settle(found: np.ndarray) -> None:
            nonlocal waiting
            labels.append(found)
            scores.append(np.exp(waiting[np.arange(len(found)), found]))
            waiting = waiting[len(found) :]

        for logits in self.logits(ids):
            rows = log_softmax(logits)
            waiting = np.concatenate([waiting, rows])
            settle(best.push(rows))
        settle(best.finish())
        return np.concatenate(labels), np.concatenate(scores), starts, ends

    def _encode(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids, and where each starts and ends in characters."""
        if not isinstance(text, str):
            raise InvalidType(f"a text is a str, not {type(text).__name__}; see `decode` for bytes")
        plain = ESCAPED.sub("\N{REPLACEMENT CHARACTER}", text)
        check_text(plain, "the text")
        parts = [np.zeros((0, 3), np.int64)]
        for place, block in blocks(plain):
            part = np.array(self._words.locate(block), np.int64).reshape(-1, 3)
            part[:, 1:] += place
            parts.append(part)
        ids, starts, ends = np.concatenate(parts).T
        return ids, starts, ends

    def logits(self, ids: np.ndarray, most: int | None = None) -> Iterator[np.ndarray]:
        """Scores of labels, float32 (n, N) for all tokens of a text, a stretch at a time.

        ids: token ids (n,). most: tokens of a call, at most and by default `max_tokens`.
        """
        ids = np.asarray(ids)
        self._check_ids(ids)
        for window in windows(len(ids), min(most or self.max_tokens, self.max_tokens), self.reach):
            found = self._run(ids, window)
            if not np.isfinite(found).all():
                raise InvalidBundle(
                    f"{self.bundle.path}: scores that are no numbers, of tokens {window.start} to "
                    f'{window.stop}: they leave the range of fp16; take precision "fp32"'
                )
            yield found

    def _run(self, ids: np.ndarray, window: Window) -> np.ndarray:
        """One call: (last - first, N)."""
        n, manifest = window.stop - window.start, self.bundle.manifest

        def host(T: int) -> dict[str, np.ndarray]:
            # By their places in the whole text, so that tables are equal on both sides of a seam.
            tables = manifest.host.tables(window.start + np.arange(T), self.max_tokens)
            return tables | {"mask": text_mask([n], T, manifest.tags.window)}

        scores = self._call(self._embedding[ids[window.start : window.stop]], host)
        return scores[window.first - window.start : window.last - window.start]


def decode(data: bytes, name: str, errors: str = "strict") -> str:
    """A file's bytes as text; encode("utf-8", "surrogateescape") gives them back, every one.

    errors: "strict" raises InvalidInput, which says where, for what is no UTF-8; "replace" lets it
    pass: the model sees signs that cannot be read, and what is written has the bytes as they were.
    """
    try:
        return data.decode("utf-8", "strict" if errors == "strict" else "surrogateescape")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise InvalidInput(
            f"{name} is not UTF-8 at byte {error.start:,} (line {line:,}, byte {column:,} of it): "
            f"0x{data[error.start]:02x}, {error.reason}; --errors replace goes on, and keeps such "
            "bytes as they are"
        ) from None
