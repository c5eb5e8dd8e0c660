"""Sampling: filters as in `transformers`, draws with the right shares, settings refused."""

from ane_book.errors import AneBookError, InvalidInput
from ane_book.options import Sampling, checked
from ane_book.runtime.sampling import Sampler, filter_logits
import numpy as np
import pytest


def warped(logits: np.ndarray, temperature, top_k, top_p) -> np.ndarray:
    """The same logits through transformers' warpers."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p else []
    scores = torch.from_numpy(logits)[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].numpy()


class TestSampling:
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
    @pytest.mark.parametrize("top_k", [None, 1, 7, 5000])
    @pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.95, 1.0])
    def test_filters_as_transformers(self, temperature, top_k, top_p):
        random = np.random.default_rng(0)
        for spread in (0.1, 1.0, 5.0):
            logits = (spread * random.standard_normal(1000)).astype(np.float32)
            if top_p in (None, 1.0):  # which of equal logits top-p keeps is torch.sort's whim
                logits[random.integers(1000, size=300)] = logits[0]
            ours = filter_logits(logits, temperature, top_k, top_p)
            theirs = warped(logits, temperature, top_k, top_p)
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(theirs))
            np.testing.assert_array_equal(ours, theirs)

    def test_top_p_stops_where_it_is_reached(self):
        """Of four tokens alike, with exactly a quarter each, no more are left than reach p."""
        for kept in (1, 2, 3):
            found = filter_logits(np.zeros(4, np.float32), top_p=kept / 4)
            assert np.isfinite(found).sum() == kept

    def test_draws_with_the_probabilities(self):
        probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
        logits = np.log(probabilities).astype(np.float32)
        sampler = Sampler(Sampling(temperature=1.0, seed=1))
        counts = np.bincount([sampler(logits) for _ in range(8000)], minlength=5)
        expected = 8000 * probabilities
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 18.47  # 0.999 quantile of chi-square with 4 degrees of freedom

    def test_never_draws_what_is_filtered(self):
        logits = np.random.default_rng(2).standard_normal(100).astype(np.float32)
        kept = set(np.argsort(logits)[-5:])
        sampler = Sampler(Sampling(temperature=3.0, top_k=5, seed=3))
        assert {sampler(logits) for _ in range(500)} == kept

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("wrong, says", [(np.nan, "hold NaN"), (np.inf, "hold infinities")])
    def test_what_is_no_number_is_no_token(self, temperature, wrong, says):
        logits = np.array([1, 2, wrong, 3], np.float32)
        with pytest.raises(AneBookError, match=says):
            Sampler(Sampling(temperature=temperature))(logits)

    @pytest.mark.parametrize("temperature", [1e-20, 1e-36, 1e-40, 5e-324])
    @pytest.mark.parametrize("top_p", [None, 0.9])
    def test_cold_is_greedy(self, temperature, top_p):
        """However cold: 1 over a temperature that float32 does not hold would be infinite."""
        sampler = Sampler(Sampling(temperature=temperature, top_p=top_p, seed=1))
        logits = np.array([-60000, 5, 65504, 65472, -np.inf], np.float32)
        assert {sampler(logits) for _ in range(20)} == {2}

    def test_seed_repeats(self):
        logits = np.zeros(1000, np.float32)

        def draw(seed):
            sampler = Sampler(Sampling(temperature=1.0, seed=seed))
            return [sampler(logits) for _ in range(20)]

        assert draw(7) == draw(7) != draw(8)
        assert draw(None) != draw(None)

    def test_greedy_takes_the_first_of_the_largest(self):
        logits = np.array([1, 5, 5, 2], np.float32)
        assert Sampler(Sampling())(logits) == 1
        assert Sampler(Sampling(temperature=0, top_k=3, top_p=0.1, seed=1))(logits) == 1

    @pytest.mark.parametrize(
        "setting",
        [
            {"temperature": -1},
            {"temperature": float("nan")},
            {"temperature": float("inf")},
            {"temperature": "hot"},
            {"top_k": 0},
            {"top_k": 2.5},
            {"top_p": 0},
            {"top_p": 1.5},
            {"seed": -1},
            {"seed": 1.5},
        ],
        ids=str,
    )
    def test_refuses_nonsense(self, setting):
        with pytest.raises(InvalidInput, match=f"{next(iter(setting))} must be"):
            checked(Sampling, setting)
