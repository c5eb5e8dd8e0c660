"""From scores to spans: labels that make sense, seams that change nothing, bytes that stay."""

from itertools import accumulate, pairwise, product
import re

from _labels import NAMES, makes_sense, parted
from ane_book.errors import InvalidInput
from ane_book.host import check_labels
from ane_book.models.privacy_filter import LABELS
from ane_book.runtime.sampling import log_softmax
from ane_book.runtime.tags import decode
from ane_book.runtime.tags.spans import Viterbi, find_spans
from ane_book.runtime.tags.stretches import Stretch, begin_words
from ane_book.runtime.tags.windows import blocks, windows
from ane_book.weights.gguf_tokenizer import CUTS
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

SIGNS = "aB1' \n\r\t,.;/_-@é\u0301🙂他，"
WORD_ENDS = r'(?<=[^\W_])(?=[\s,;:.!?()"。、，；：！？])'


class TestWindows:
    @pytest.mark.parametrize("tokens", [0, 1, 30, 31, 47, 100, 1000])
    @pytest.mark.parametrize(("most", "reach"), [(30, 0), (30, 3), (30, 14)])
    @pytest.mark.parametrize("parts", [1, 2, 50])
    def test_keep_every_token_once_and_far_from_a_cut(self, tokens, most, reach, parts):
        kept, ids = [], np.arange(tokens) + 7
        for window in windows(np.array_split(ids, parts), most, reach):
            assert (window.ids == ids[window.start :][: len(window.ids)]).all()
            assert len(window.ids) <= most
            first, last = window.kept.start, window.kept.stop
            assert window.start == 0 or first >= reach
            assert window.start + len(window.ids) == tokens or len(window.ids) - last >= reach
            kept += window.ids[window.kept].tolist()
        assert kept == ids.tolist()

    def test_blocks_end_where_a_word_does(self):
        assert list(blocks(["one two\nthree four five"], 14)) == [
            "one two\nthree", " four", " five",
        ]  # fmt: skip

    @pytest.mark.parametrize("cut", CUTS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_the_words_of_every_tokenizer_are_those_of_the_whole_text(self, cut, data):
        """However a text comes, and wherever its blocks end, if it has a place in each for that."""
        text = data.draw(st.text(SIGNS, max_size=60))
        longest = max(map(len, re.split(WORD_ENDS, text)))
        most = data.draw(st.integers(max(longest, 1), 70))
        found = list(blocks(parted(text, data), most))
        assert "".join(found) == text and all(0 < len(part) <= most for part in found)
        words = [word for part in found for word, _ in CUTS[cut].pre_tokenize_str(part)]
        assert words == [word for word, _ in CUTS[cut].pre_tokenize_str(text)]

    @given(st.text("ab, ", max_size=80), st.integers(1, 8), st.data())
    def test_a_stretch_without_a_place_is_cut_alike_however_it_comes(self, text, most, data):
        def cuts(parts) -> set[int]:
            ends = set(accumulate(map(len, blocks(parts, most))))
            return ends - {found.start() for found in re.finditer(WORD_ENDS, text)}

        assert cuts(parted(text, data)) == cuts([text])


def best_by_trying_all(scores: np.ndarray) -> float:
    """The largest sum over all sequences that make sense, found without Viterbi."""
    n = range(len(scores))
    paths = product(range(len(NAMES)), repeat=len(scores))
    return max(scores[n, path].sum() for path in paths if makes_sense([NAMES[i] for i in path]))


class TestViterbi:
    @pytest.mark.parametrize("seed", range(4))
    def test_finds_the_best_of_all_sequences_however_they_come(self, seed):
        generator = np.random.default_rng(seed)
        scores = log_softmax(generator.normal(size=(4, 9)).astype(np.float32) * 3)
        for cuts in ([], [1], [1, 2, 3], [2, 2]):
            best = Viterbi(NAMES)
            found = [best.push(part) for part in np.split(scores, cuts)]
            path = np.concatenate([*found, best.finish()])
            np.testing.assert_allclose(
                scores[np.arange(4), path].sum(), best_by_trying_all(scores), rtol=1e-6
            )

    def test_stretches_do_not_change_a_long_sequence_and_little_waits(self):
        generator = np.random.default_rng(0)
        scores = log_softmax(generator.normal(size=(3000, 33)).astype(np.float32) * 3)
        whole = Viterbi(LABELS)
        expected = np.concatenate([whole.push(scores), whole.finish()])
        best, found = Viterbi(LABELS), []
        for part in np.array_split(scores, 50):
            found.append(best.push(part))
            assert len(best._steps) < 60
        np.testing.assert_array_equal(np.concatenate([*found, best.finish()]), expected)

    @pytest.mark.parametrize(("labels", "tokens"), [(["O"], 5), (NAMES, 0)])
    def test_where_nothing_can_be_found(self, labels, tokens):
        best = Viterbi(labels)
        found = [best.push(np.zeros((tokens, len(labels)), np.float32)), best.finish()]
        assert np.concatenate(found).tolist() == [0] * tokens

    @pytest.mark.parametrize(
        "labels", [["B-x"], ["O", "B-x"], ["O", "O"], ["O", "B-", "I-", "E-", "S-"], []], ids=str
    )
    def test_labels_that_are_not_of_spans(self, labels):
        with pytest.raises(ValueError, match="are not O and, of each kind"):
            check_labels(labels)


def spans_of(text: str, tokens: list[tuple[int, int, str]]) -> list[tuple]:
    starts, ends, names = (np.array(column) for column in zip(*tokens, strict=True))
    chosen = np.array([NAMES.index(name) for name in names])
    scores, places = np.full(len(chosen), 0.5), np.stack([starts, ends], axis=1)
    stretch = Stretch(text, 0, 0, chosen, scores, places, begin_words(text, places))
    found = list(find_spans(NAMES, stretch))
    for span in found:
        data = text.encode()[span.byte_start : span.byte_end]
        assert data.decode() == text[span.start : span.end]
    return [(span.label, text[span.start : span.end]) for span in found]


class TestSpans:
    def test_have_no_white_space_at_their_ends(self):
        text = "é Ann  Lee x"
        tokens = [(0, 1, "O"), (1, 5, "B-name"), (5, 11, "E-name"), (11, 12, "S-name")]
        assert spans_of(text, tokens) == [("name", "Ann  Lee"), ("name", "x")]
        assert spans_of("a  b", [(0, 1, "O"), (1, 3, "S-url"), (3, 4, "O")]) == []

    def test_have_no_character_in_common(self):
        """The bytes of one character may be tokens of two spans."""
        tokens = [(0, 1, "S-name"), (0, 1, "S-url"), (1, 2, "B-url"), (2, 3, "E-url")]
        assert spans_of("🙂🙂b", tokens) == [("name", "🙂"), ("url", "🙂b")]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("to marmalade now", "marmalade"),
            ("to lemarm now", "lemarm"),
            ("(l'arma/x)", "arma"),
            ("x4arm5y;", "x4arm5y"),
            ("arn\u0301a arm", "arn\u0301a"),
            ("e\u0301arm\u0301 ", "e\u0301arm\u0301"),
            ("ан armи ", "armи"),
            ("an_arm_or", "arm"),
            ("田arm田中", "arm"),
            ("여arm는", "arm"),
            ("🙂arm🙂", "arm"),
            ("arm🙂\u200d🙂", "arm"),
        ],
    )
    def test_have_all_of_a_word(self, text, expected):
        """Of tokens of a character each, two in the middle are labelled."""
        at = text.index("ar")
        tokens = [(i, i + 1, "O") for i in range(len(text))]
        tokens[at], tokens[at + 1] = (at, at + 1, "B-name"), (at + 1, at + 2, "E-name")
        assert spans_of(text, tokens) == [("name", expected)]

    def test_of_one_word_are_the_first_one(self):
        tokens = [(0, 1, "S-name"), (1, 2, "S-url"), (2, 3, "O"), (3, 4, "B-url"), (4, 5, "E-url")]
        assert spans_of("abc/d", tokens) == [("name", "abc"), ("url", "/d")]

    def test_have_no_more_than_a_thousand_characters_of_a_word(self):
        tokens = [(i, i + 1, "S-name" if i == 1500 else "O") for i in range(3000)]
        assert spans_of("x" * 3000, tokens) == [("name", "x" * 1000)]

    def test_of_signs_that_are_drawn_as_one(self):
        tokens = [(i, i + 1, "S-name" if i == 1 else "O") for i in range(4)]
        assert spans_of("a🙂\u200d🙂", tokens) == [("name", "🙂\u200d🙂")]


class TestDecode:
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    @pytest.mark.parametrize(
        ("data", "where"),
        [
            (b"ab\ncd\xff", r"byte 5 \(line 2, byte 3 of it\): 0xff, invalid start"),
            (b"\xff\xfea\0b", r"byte 0 \(line 1, byte 1 of it\): 0xff"),
            (b"\n\n\xe2\x82\n", r"byte 2 \(line 3, byte 1 of it\): 0xe2, invalid cont"),
            (b"a\n\xf0\x9f", r"byte 2 \(line 2, byte 1 of it\): 0xf0, unexpected end"),
        ],
    )
    def test_a_file_that_is_not_utf8_is_told_where(self, data, where, size):
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        with pytest.raises(InvalidInput, match=f"f is not UTF-8 at {where}"):
            list(decode(parts, "f"))

    @given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=5))
    def test_bytes_come_back_however_they_came(self, data, cuts):
        parts = [data[a:b] for a, b in pairwise([0, *sorted(cuts), len(data)])]
        text = "".join(decode(parts, "f", "replace"))
        assert text == data.decode("utf-8", "surrogateescape")
