"""Spans of texts: labels that make sense, windows whose seams change nothing, bytes that stay."""

from itertools import accumulate, pairwise, product
import json
import re

from _command import ane_book as command
from _command import refused
from _taggers import SIZES, tiny_tagger, write_tagger
import ane_book
from ane_book.errors import InvalidInput, InvalidType
from ane_book.host import check_labels
from ane_book.models.privacy_filter import LABELS
from ane_book.runtime import Tagger
from ane_book.runtime.tags import decode
from ane_book.runtime.tags.spans import Viterbi, find_spans, log_softmax
from ane_book.runtime.tags.stretches import Stretch
from ane_book.runtime.tags.windows import blocks, windows
from ane_book.weights.tokenizer import CUTS
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import torch

NAMES = ["O", *(f"{part}-{kind}" for kind in ("name", "url") for part in "BIES")]
SIGNS = "aB1' \n\r\t,.;/_-@é\u0301🙂他，"
WORD_ENDS = r'(?<=[^\W_])(?=[\s,;:.!?()"。、，；：！？])'
TEXT = "Ann Lee, ann@example.org; zażółć 🙂🙂\r\n\tcall\x00 +48 600 100 200, é" * 4


def parted(text: str, data) -> list[str]:
    """The text in parts, somehow."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@pytest.fixture(scope="session")
def tagger(tmp_path_factory):
    """`tagger(size, **recipe)` -> (transformers model, bundle), converted once."""
    made = {}

    def make(size: str = "usual", **recipe):
        recipe = {"context": 64} | recipe
        key = size, *sorted(recipe.items())
        if key not in made:
            model = tiny_tagger(size)
            folder = write_tagger(model, tmp_path_factory.mktemp(size))
            out = tmp_path_factory.mktemp("bundles") / size
            made[key] = model, ane_book.convert(str(folder), out=out, **recipe)
        return made[key]

    return make


def scores_of(tagger: Tagger, ids, most=None) -> np.ndarray:
    return np.concatenate(list(tagger.logits(np.asarray(ids), most)))


class TestScores:
    @pytest.mark.parametrize("size", SIZES)
    def test_are_those_of_transformers_below_at_and_above_the_band(self, tagger, size):
        model, bundle = tagger(size)
        found, half = Tagger(bundle, "fp32"), Tagger(bundle)
        band = model.config.sliding_window
        for tokens in (1, band, band + 1, 3 * band + 11):
            ids = np.random.default_rng(tokens).integers(0, model.config.vocab_size, tokens)
            expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
            np.testing.assert_allclose(scores_of(found, ids), expected, atol=1e-3)
            ours = scores_of(half, ids).ravel()
            cosine = ours @ expected.ravel() / np.linalg.norm(ours) / np.linalg.norm(expected)
            assert cosine > 0.999

    def test_strategies_agree(self, tagger):
        ids = np.random.default_rng(0).integers(0, 257, 50)
        dense, packed = (
            scores_of(Tagger(tagger("usual", experts=name)[1], "fp32"), ids)
            for name in ("dense", "packed")
        )
        np.testing.assert_allclose(dense, packed, atol=1e-4)

    def test_seams_change_nothing(self, tagger):
        """A text of several windows, whatever their length: the scores of one long call."""
        model, bundle = tagger("usual")
        tagging = Tagger(bundle, "fp32")
        assert tagging.reach == 10  # two layers, five tokens each
        ids = np.random.default_rng(0).integers(0, 257, 300)
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
        for most in (21, 22, 40, 63, 64):
            found = scores_of(tagging, ids, most)
            np.testing.assert_allclose(found, expected, atol=1e-3)
            assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()

    def test_a_window_that_would_keep_nothing_is_refused(self, tagger):
        tagging = Tagger(tagger("usual")[1])
        with pytest.raises(
            InvalidInput, match=r"more than 20 tokens takes several.* context of 40"
        ):
            scores_of(tagging, range(21), 20)
        assert scores_of(tagging, range(20), 20).shape == (20, 33)

    def test_of_ids_outside_the_vocabulary(self, tagger):
        with pytest.raises(InvalidInput, match="token id 257 is outside the vocabulary of 257"):
            scores_of(Tagger(tagger("usual")[1]), [3, 257])

    def test_parity_is_found_and_recorded(self, tagger):
        from ane_book.evidence.parity import check_parity

        for size in ("usual", "narrow"):
            found = check_parity(tagger(size)[1])
            assert found.passed, found.reason

    def test_of_a_bundle_cut_into_programs(self, tagger):
        whole, cut = tagger("narrow")[1], tagger("narrow", shard_limit="0.25MB")[1]
        assert len(whole.manifest.packages) == 1 and len(cut.manifest.packages) == 3
        ids = np.random.default_rng(0).integers(0, 257, 40)
        a, b = (scores_of(Tagger(bundle, "fp32"), ids) for bundle in (whole, cut))
        np.testing.assert_allclose(a, b, atol=1e-4)


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

    @pytest.mark.parametrize("text", ["", "a", "ab " * 50, "x" * 95, "é\n" * 40, "a\n\nb " * 30])
    def test_blocks_are_the_text(self, text):
        found = list(blocks([text], 20))
        assert "".join(found) == text
        assert all(0 < len(part) <= 20 for part in found)

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
        assert "".join(found) == text
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

    def makes_sense(path: tuple[int, ...]) -> bool:
        inside = ""
        for label in (NAMES[i] for i in path):
            if (label[0] in "IE") != bool(inside) or (inside and label[2:] != inside):
                return False
            inside = label[2:] if label[0] in "BI" else ""
        return not inside

    n = range(len(scores))
    paths = product(range(len(NAMES)), repeat=len(scores))
    return max(scores[n, path].sum() for path in paths if makes_sense(path))


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

    def test_of_nothing_is_nothing(self):
        best = Viterbi(NAMES)
        assert len(best.push(np.zeros((0, 9), np.float32))) == len(best.finish()) == 0

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
    found = list(find_spans(NAMES, Stretch(text, 0, 0, chosen, scores, places)))
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
        tokens = [(0, 1, "S-name"), (0, 1, "S-url"), (0, 2, "B-url"), (2, 3, "E-url")]
        assert spans_of("🙂🙂b", tokens) == [("name", "🙂"), ("url", "🙂b")]


class TestRedact:
    def check(self, text: str, found) -> None:
        place, rest = 0, found.text
        for span in found.spans:
            assert place <= span.start < span.end
            between = text[place : span.start] + span.replacement
            assert rest.startswith(between)
            rest, place = rest[len(between) :], span.end
            data = text.encode("utf-8", "surrogateescape")[span.byte_start : span.byte_end]
            assert data == text[span.start : span.end].encode("utf-8", "surrogateescape")
            assert 0 < span.score <= 1
        assert rest == text[place:]

    def test_leaves_all_else_as_it_is(self, tagger):
        tagging = ane_book.load(tagger("odd")[1].path, precision="fp32")
        assert isinstance(tagging, Tagger)
        for text in (TEXT, "", " ", "\n\n", "x" * 200, "\r\n🙂\ufeff", "a b " * 100):
            found = tagging.redact(text)
            self.check(text, found)
            tags = tagging.tag(text)
            assert [t.label[0] for t in tags].count("S") + [t.label[0] for t in tags].count(
                "B"
            ) >= len(found.spans)
        assert len(tagging.redact(TEXT).spans) > 3  # or nothing was shown

    def test_the_same_whatever_the_windows(self, tagger):
        one, other = (Tagger(tagger("usual", context=c)[1], "fp32") for c in (64, 512))
        a, b = one.redact(TEXT), other.redact(TEXT)
        assert a.text == b.text and len(a.spans) > 3
        for x, y in zip(a.spans, b.spans, strict=True):
            assert x.score == pytest.approx(y.score, abs=1e-3)

    def test_bytes_that_are_no_text_stay(self, tagger):
        data = b"Ann \xff\xfe Lee \x80" * 9
        text = "".join(decode([data], "x", "replace"))
        found = Tagger(tagger("odd")[1], "fp32").redact(text)
        self.check(text, found)
        assert found.spans

    @pytest.mark.parametrize("text", [b"x", None, ["x"]], ids=str)
    def test_what_is_no_text(self, tagger, text):
        with pytest.raises(InvalidType, match="a text is a str, not"):
            Tagger(tagger("odd")[1]).redact(text)

    def test_half_a_character(self, tagger):
        with pytest.raises(InvalidInput, match="not valid text at character 2"):
            Tagger(tagger("odd")[1]).redact("ab\ud83d")

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


class TestCommand:
    def test_replaces_spans_and_keeps_every_other_byte(self, tagger, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_bytes(TEXT.encode())
        done = command("redact", "--model", path, file, "--precision", "fp32")
        expected = Tagger(path, "fp32").redact(TEXT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected.text.replace("\r\n", "\n")  # read as text by the test
        assert f"{len(expected.spans)} spans, " in done.stderr

    def test_spans_as_json_and_a_dry_run(self, tagger):
        path = tagger("odd")[1].path
        text = TEXT.replace("\r", "")
        words = "redact", "--model", path, "-", "--precision", "fp32"
        done = command(*words, "--json", input=text)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        spans = Tagger(path, "fp32").spans(text)
        assert [(r["label"], r["start"], r["byte_end"], r["text"]) for r in rows] == [
            (s.label, s.start, s.byte_end, text[s.start : s.end]) for s in spans
        ]
        done = command(*words, "--dry-run", input=text)
        first = spans[0]
        assert f"[{first.label}: {text[first.start : first.end]}]" in done.stdout

    def test_an_empty_file_is_empty(self, tagger):
        done = command("redact", "--model", tagger("odd")[1].path, "-")
        assert (done.returncode, done.stdout) == (0, "") and "0 spans" in done.stderr

    def test_bad_input_is_told_in_one_sentence(self, tagger, tiny_bundle, tmp_path):
        path = tagger("odd")[1].path
        (file := tmp_path / "a.txt").write_bytes(b"ab\n\xff")
        assert "a.txt is not UTF-8 at byte 3 (line 2" in refused("redact", "--model", path, file)
        done = command("redact", "--model", path, file, "--errors", "replace", "--json")
        assert done.returncode == 0, done.stderr
        (file := tmp_path / "b.txt").write_bytes(b"ab")
        other = tiny_bundle("llama", kv="state")[1].path
        assert f"`ane-book run {other} PROMPT`" in refused("redact", "--model", other, file)
        assert f"`ane-book redact --model {path} FILE`" in refused("run", path, "Hi")
        assert "No such file" in refused("redact", "--model", path, tmp_path / "none")
        said = refused(
            "convert", "smollm2-135m-instruct", "--source", "random", "--experts", "dense"
        )
        assert "experts goes with mixtures of experts" in said
