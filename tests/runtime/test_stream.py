"""A text redacted as it is read: what comes out is what one long call gives, and little waits."""

from itertools import pairwise
import re
import tracemalloc

from _labels import NAMES, makes_sense, parted
from _long import long_but
from ane_book.errors import InvalidInput, InvalidType
from ane_book.runtime import Tagger
from ane_book.runtime.tags import spans
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

SIGNS = "aB1' \n\r\t,.\x00\x1b;/_-@é\u0301🙂שלום\u202e\ufeff\udcff\udc80他，"


LATIN = re.compile("[aB1éשלום]")


class Dice(Tagger):
    """Scores are thrown: what is made of any scores is what is tested here.

    A token is a byte, or `size` characters at once; scores come a few tokens at a time.
    """

    labels = NAMES

    def __init__(self, seed: int = 0, few: int = 7, size: int = 0):
        self._tokenizer, self._seed, self._few, self._size = self, seed, few, size

    def locate(self, text: str) -> list[tuple[int, int, int]]:
        if self._size:
            cuts = [*range(0, len(text), self._size), len(text)]
            return [(0, a, b) for a, b in pairwise(cuts)]
        return [(b, i, i + 1) for i, sign in enumerate(text) for b in sign.encode()]

    def _scores(self, ids, most=None):
        thrown, waiting = np.random.default_rng(self._seed), 0
        for part in ids:
            waiting += len(part)
            while waiting > 3 * self._few:  # behind what is read, as windows are
                yield self.throw(thrown, self._few)
                waiting -= self._few
        yield self.throw(thrown, waiting)

    def throw(self, thrown: np.random.Generator, n: int) -> np.ndarray:
        return thrown.normal(size=(n, len(NAMES))).astype(np.float32) * 3


def check(text: str, pieces: list) -> None:
    """Pieces are the text, spans are apart, their places are right, and nothing else changed."""
    place, data = 0, text.encode("utf-8", "surrogateescape")
    assert "".join(own for own, _ in pieces) == text
    for own, span in pieces:
        assert own
        if span:
            assert (span.start, span.end) == (place, place + len(own))
            assert own == own.strip() == text[span.start : span.end]
            found = data[span.byte_start : span.byte_end]
            assert found == own.encode("utf-8", "surrogateescape")
            assert span.label in ("name", "url") and 0 < span.score <= 1
        place += len(own)


def halves(text: str, pieces: list) -> None:
    """No span has a part of a word, but for what the span before it has."""
    ends = {0}
    for _, span in pieces:
        if span:
            for place in {span.start, span.end} - ends:
                before, after = text[place - 1], text[place : place + 1]
                assert not (LATIN.match(before) and LATIN.match(after)), (text, span)
                assert after != "\u0301" or before.isspace(), (text, span)
            ends.add(span.end)


def joined(pieces: list) -> list:
    """Pieces whose neighbours without a span are one: where those end is nobody's business."""
    found = []
    for own, span in pieces:
        if found and span is None is found[-1][1]:
            found[-1] = found[-1][0] + own, None
        else:
            found.append((own, span))
    return found


texts = st.text(SIGNS, max_size=120)


class TestAnyScores:
    @given(texts, st.integers(0, 99), st.integers(1, 3))
    @settings(deadline=None)
    def test_pieces_are_the_text(self, text, seed, size):
        for tagger in (Dice(seed), Dice(seed, size=size)):
            pieces = list(tagger.stream([text]))
            check(text, pieces)
            halves(text, pieces)
            redacted = tagger.redact(text)
            assert redacted.spans == tagger.spans(text) == [span for _, span in pieces if span]
            back = redacted.text
            for span in reversed(redacted.spans):  # each put back where it was
                before, _, after = back.rpartition(span.replacement)
                back = before + text[span.start : span.end] + after
            assert back == text

    @given(texts, st.integers(0, 99), st.integers(1, 50), st.data())
    @settings(deadline=None)
    def test_are_the_same_however_text_and_scores_come(self, text, seed, few, data):
        one, other = Dice(seed).stream([text]), Dice(seed, few).stream(parted(text, data))
        for (own, span), (own_too, span_too) in zip(joined(one), joined(other), strict=True):
            assert own == own_too and (span is None) == (span_too is None)
            assert span is None or span.score == pytest.approx(span_too.score)

    @given(texts, st.integers(0, 99))
    @settings(deadline=None)
    def test_labels_make_sense(self, text, seed):
        tags = Dice(seed).tag(text)
        assert makes_sense([tag.label for tag in tags])
        assert len(tags) == len(
            text.replace("\udcff", "\ufffd").replace("\udc80", "\ufffd").encode()
        )

    @given(texts, st.integers(0, 99), st.integers(1, 50), st.integers(1, 9))
    @settings(deadline=None)
    def test_where_a_span_is_longer_than_may_wait(self, text, seed, few, longest):
        """Cut by the text alone, not by how it came; all else holds."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spans, "LONGEST", longest)
            pieces = list(Dice(seed).stream([text]))
            check(text, pieces)
            assert joined(Dice(seed, few).stream(text)) == joined(pieces)


class Undecided(Dice):
    """A name that goes on is likelier than none, by next to nothing, and its end is not likely."""

    def throw(self, thrown, n):
        scores = {"O": 0.0, "B-name": -1.0, "I-name": 1e-6}
        return np.ones((n, 1), np.float32) * [scores.get(label, -9.0) for label in NAMES]


class Secret(Dice):
    """One span from beginning to end."""

    def throw(self, thrown, n):
        return np.where(np.arange(len(NAMES)) == NAMES.index("I-name"), 9, 0) * np.ones((n, 1))


@pytest.mark.parametrize(
    ("kind", "signs"),
    long_but(
        [(Dice, "x"), (Dice, "word "), (Dice, "🙂\r\n"), (Undecided, "x")],
        (Dice, "🙂\r\n"),
        (Undecided, "x"),
    ),
)
def test_memory_does_not_grow_with_the_text(kind, signs, monkeypatch):
    monkeypatch.setattr(spans, "LONGEST", 500)

    def peak(characters: int) -> int:
        tracemalloc.start()
        parts = (signs * (1000 // len(signs)) for _ in range(characters // 1000))
        given = sum(len(own) for own, _ in kind(few=64, size=50).stream(parts))
        assert given == characters // 1000 * (1000 // len(signs)) * len(signs)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(1000)
    long, longer = peak(200_000), peak(400_000)
    assert longer < 1.2 * long, (long, longer)


def test_a_span_of_any_length_is_one():
    text = "  " + "x y" * 50_000 + "\n"
    ((own, none), (secret, span), (end, _)) = Secret(size=8).stream([text])
    assert (own, none, end) == ("  ", None, "\n") and secret == text.strip()
    assert (span.start, span.end, span.label) == (2, 150_002, "name")


def test_what_is_settled_does_not_wait_for_the_end():
    read = []

    def parts():
        for i in range(100):
            read.append(i)
            yield "word " * 10

    stream = Dice().stream(parts())
    given = ""
    for own, _ in stream:
        given += own
        assert 50 * len(read) - len(given) < 400
    assert len(given) == 5000


@pytest.mark.parametrize("part", [b"x", None, 1, ["x"]], ids=str)
def test_what_is_no_text(part):
    with pytest.raises(InvalidType, match="a text is a str, not"):
        list(Dice().stream(["x", part]))


def test_half_a_character_is_told_where_in_all_the_text():
    with pytest.raises(InvalidInput, match="not valid text at character 100002"):
        list(Dice(size=8).stream(["x" * 100_000, "ab\ud83d"]))
