"""A tagger's bundle: the scores of `transformers`, whatever the windows, and texts redacted."""

from _taggers import SIZES, TEXT
import ane_book
from ane_book.errors import InvalidInput, InvalidType
from ane_book.runtime import Tagger
from ane_book.runtime.tags import decode
import numpy as np
import pytest
import torch


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

    def test_the_same_however_it_is_read(self, tagger):
        tagging = Tagger(tagger("usual")[1], "fp32")
        expected = tagging.redact(TEXT)
        for size in (1, 7, 100):
            pieces = list(tagging.stream(TEXT[i : i + size] for i in range(0, len(TEXT), size)))
            assert "".join(own for own, _ in pieces) == TEXT
            assert [span for _, span in pieces if span] == expected.spans

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
