"""`Tagger`: label the tokens of a text, and find or redact the spans that they mark.

    tagger = ane_book.load("privacy-filter-small")
    found = tagger.redact("Write to ann@example.org.")
    found.text, found.spans    # "Write to <PRIVATE_EMAIL>.", [Span(...)]

Letters: C hidden size, T tokens of a call, N labels, n tokens of a text.
"""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
import re

from ane_book.bundle.parts import Tags
from ane_book.errors import InvalidBundle, InvalidInput, InvalidType
from ane_book.host import text_mask
from ane_book.runtime.bundle_text import check_ids
from ane_book.runtime.encoder import Encoder
from ane_book.runtime.sampling import log_softmax
from ane_book.runtime.tags.spans import Span, find_spans
from ane_book.runtime.tags.stretches import Stretch, Waiting
from ane_book.runtime.tags.windows import blocks, windows
from ane_book.text.process import check_text
import numpy as np

__all__ = ["ESCAPED", "Redaction", "Span", "Tag", "Tagger", "decode"]

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
    def _tags(self) -> Tags:
        tags = self.bundle.manifest.tags
        assert tags is not None, "what a bundle of this task has: `check_packages`"
        return tags

    @property
    def labels(self) -> list[str]:
        """The labels of tokens, in the order of scores."""
        return self._tags.labels

    @property
    def reach(self) -> int:
        """How many tokens on each side the labels of a token depend on: those of all layers."""
        layers = max(part.layers[1] for part in self.bundle.manifest.shards if part.layers)
        return layers * self._tags.window

    def redact(self, text: str) -> Redaction:
        """The text with every span replaced by its kind, "<PRIVATE_EMAIL>"; all else as it is."""
        pieces = list(self.stream([text]))
        redacted = "".join(span.replacement if span else piece for piece, span in pieces)
        return Redaction(redacted, [span for _, span in pieces if span])

    def spans(self, text: str) -> list[Span]:
        """Find the spans of a text, in order; they do not overlap.

        A text may have any length: what is longer than a call goes in windows that overlap, and its
        labels are those that one long call would give. Bytes that are not UTF-8, but that `decode`
        let pass, are unreadable characters to the model.

        Raises InvalidType (a TypeError too) for anything but a str, and InvalidInput.
        """
        return [span for _, span in self.stream([text]) if span]

    def stream(self, parts: Iterable[str]) -> Iterator[tuple[str, Span | None]]:
        """Yield all of a text in pieces: that of a span with the span, or between spans with None.

        The text is read in parts; how it is divided changes nothing. A piece comes as soon as
        nothing that follows can change it, a call's tokens behind what was read, and then is
        forgotten, so a text may be larger than memory. Raises as `spans` does.
        """
        for stretch in self._stretches(parts):
            place = stretch.start
            for span in find_spans(self.labels, stretch):
                if place < span.start:
                    yield stretch.part(place, span.start), None
                yield stretch.part(span.start, span.end), span
                place = span.end
            if rest := stretch.text[place - stretch.start :]:
                yield rest, None

    def tag(self, text: str) -> list[Tag]:
        """Every token of a text with its label in the best valid sequence of labels."""
        return [
            Tag(int(start), int(end), self.labels[label], float(score))
            for own in self._stretches([text])
            for (start, end), label, score in zip(own.places, own.labels, own.scores, strict=True)
        ]

    def _stretches(self, parts: Iterable[str]) -> Iterator[Stretch]:
        """Yield the text with its tokens' labels, in stretches that no span crosses."""
        waiting = Waiting(self.labels)
        for logits in self._scores(self._read(parts, waiting)):
            if stretch := waiting.settle(log_softmax(logits)):
                yield stretch
        yield waiting.finish()

    def _read(self, parts: Iterable[str], waiting: Waiting) -> Iterator[np.ndarray]:
        """Yield the token ids of a text; text and tokens are added to `waiting`."""
        place = 0
        for text in blocks(map(_checked, parts)):
            plain = ESCAPED.sub("\N{REPLACEMENT CHARACTER}", text)
            check_text(plain, "the text", place)
            located = np.array(self._tokenizer.locate(plain), np.int64).reshape(-1, 3)
            waiting.read(text, located[:, 1:] + place)
            place += len(text)
            yield located[:, 0]

    def logits(self, ids: np.ndarray, most: int | None = None) -> Iterator[np.ndarray]:
        """Scores of labels, float32 (n, N) for all tokens of a text, a stretch at a time.

        ids: token ids (n,). most: tokens of a call, at most and by default `max_tokens`.
        """
        yield from self._scores([np.asarray(ids)], most)

    def _scores(self, ids: Iterable[np.ndarray], most: int | None = None) -> Iterator[np.ndarray]:
        """`logits` of ids that come in parts."""
        for window in windows(ids, min(most or self.max_tokens, self.max_tokens), self.reach):
            check_ids(window.ids, len(self._embedding))
            n, T = len(window.ids), self._width(len(window.ids))
            # By their places in the whole text, so that tables are equal on both sides of a seam.
            places = window.start + np.arange(T)
            inputs = self.bundle.manifest.host.tables(places, self.max_tokens)
            inputs["mask"] = _mask(n, T, self._tags.window)
            rows = self._embedding[window.ids]
            scores = self._call(self._steps, rows, "logits", inputs)[window.kept]
            if not np.isfinite(scores).all():
                raise InvalidBundle(
                    f"{self.bundle.path}: scores that are no numbers, of tokens {window.start:,} "
                    f"to {window.start + n:,}: they leave the range of fp16; take "
                    'precision "fp32"'
                )
            yield scores


@lru_cache(maxsize=1)  # all windows of a text are equally long but the last
def _mask(n: int, T: int, band: int) -> np.ndarray:
    return text_mask([n], T, band)


def _checked(part: str) -> str:
    if not isinstance(part, str):
        raise InvalidType(f"a text is a str, not {type(part).__name__}; see `decode` for bytes")
    return part


def decode(parts: Iterable[bytes], name: str, errors: str = "strict") -> Iterator[str]:
    """Decode bytes as text; encode("utf-8", "surrogateescape") gives every one of them back.

    Both come in parts. errors: "strict" raises InvalidInput, which says where, for bytes that are
    not UTF-8; "replace" lets them pass: the model sees unreadable characters, and what is written
    has the bytes as they were.
    """
    errors = "strict" if errors == "strict" else "surrogateescape"
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    place, line, begun = 0, 1, 0  # bytes before this part, its line, and where that one begins
    for part in chain(filter(None, parts), [b""]):
        half = len(decoder.getstate()[0])  # of a character, from the part before
        try:
            yield decoder.decode(part, final=not part)
        except UnicodeDecodeError as error:
            at = place - half + error.start
            line, begun = _line(error.object[half : error.start], line, begun, place)
            raise InvalidInput(
                f"{name} is not UTF-8 at byte {at:,} (line {line:,}, byte {at - begun + 1:,} of "
                f"it): 0x{error.object[error.start]:02x}, {error.reason}; --errors replace goes "
                "on, and keeps such bytes as they are"
            ) from None
        line, begun = _line(part, line, begun, place)
        place += len(part)


def _line(part: bytes, line: int, begun: int, place: int) -> tuple[int, int]:
    """The line that a part ends in, and where that line begins."""
    last = part.rfind(b"\n")
    return line + part.count(b"\n"), begun if last < 0 else place + last + 1
