"""A tagger's bundle: the scores of `transformers`, whatever the windows, and texts redacted."""

from _taggers import TEXT
from ane_book.errors import InvalidInput
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Tagger
import numpy as np
import pytest
import torch


def scores_of(tagger: Tagger, ids, most=None) -> np.ndarray:
    return np.concatenate(list(tagger.logits(np.asarray(ids), most)))


class TestScores:
    @pytest.mark.parametrize(
        ("size", "recipe", "programs"),
        [("usual", {}, 1), ("odd", {"experts": "dispatch"}, 7),
         pytest.param("narrow", {"shard_limit": "0.25MB"}, 3, marks=pytest.mark.long)],
    )  # fmt: skip
    def test_are_those_of_transformers(self, tagger, size, recipe, programs):
        """Of texts below the band, at it and above it."""
        model, bundle = tagger(size, **recipe)
        assert len(bundle.manifest.packages) == programs
        found, half = Tagger(bundle, "fp32"), Tagger(bundle)
        band = model.config.sliding_window
        for tokens in (1, band, band + 1, 3 * band + 11):
            ids = np.random.default_rng(tokens).integers(0, model.config.vocab_size, tokens)
            expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
            np.testing.assert_allclose(scores_of(found, ids), expected, atol=1e-3)
            ours = scores_of(half, ids).ravel()
            cosine = ours @ expected.ravel() / np.linalg.norm(ours) / np.linalg.norm(expected)
            assert cosine > 0.999

    def test_pass_parity(self, tagger):
        found = check_parity(tagger("usual")[1])
        assert found.passed, found.reason

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


def test_a_text_is_redacted_alike_however_it_is_read(tagger):
    tagging = Tagger(tagger("usual")[1], "fp32")
    expected = tagging.redact(TEXT)
    for size in (1, 7, 100):
        pieces = list(tagging.stream(TEXT[i : i + size] for i in range(0, len(TEXT), size)))
        assert "".join(own for own, _ in pieces) == TEXT
        assert [span for _, span in pieces if span] == expected.spans
