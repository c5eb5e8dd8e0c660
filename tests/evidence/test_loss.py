"""Loss on a text, against the formulas in float64."""

from itertools import pairwise

from ane_book.errors import InvalidInput
from ane_book.evidence import loss
import numpy as np
import pytest
import torch


def model(seed: int, scale: float = 3.0):
    """Logits that depend on the token alone."""
    table = np.random.default_rng(seed).standard_normal((50, 50)).astype(np.float32) * scale
    return lambda token_ids: table[token_ids]


IDS = np.random.default_rng(0).integers(0, 50, 61).tolist()


def test_the_numbers_are_those_of_their_definitions():
    found, reference = model(1), model(2)
    result = loss.measure(found, reference, IDS, window=20)
    pairs = [(a, b) for i, (a, b) in enumerate(pairwise(IDS)) if i % 20 != 19]
    assert result.tokens == len(pairs)
    before, after = torch.tensor(pairs).T
    a, b = (torch.from_numpy(m(before.numpy())).double().log_softmax(1) for m in (found, reference))
    likelihood = torch.nn.functional.nll_loss(a, after)
    divergence = torch.nn.functional.kl_div(a, b, reduction="batchmean", log_target=True)
    assert result.perplexity == pytest.approx(float(likelihood.exp()), rel=1e-5)
    assert result.divergence == pytest.approx(float(divergence), rel=1e-5)
    assert result.agreement == (a.argmax(1) == b.argmax(1)).double().mean().item()


def test_a_model_loses_nothing_against_itself():
    result = loss.measure(model(1), model(1), IDS)
    assert (result.agreement, result.divergence) == (1.0, 0.0)


def test_errors_are_as_large_as_texts_differ():
    """Many texts drawn alike: their means scatter as each one's own standard error says."""
    found, reference = model(1), model(2)
    draw = np.random.default_rng(1)
    texts = [draw.integers(0, 50, 1000).tolist() for _ in range(40)]
    results = [loss.measure(found, reference, ids, window=200) for ids in texts]
    for name in ("perplexity", "change", "agreement", "divergence"):
        scatter = np.std([getattr(result, name) for result in results], ddof=1)
        said = np.median([getattr(result, f"{name}_error") for result in results])
        assert said == pytest.approx(scatter, rel=0.4), name
    assert np.isfinite(said) and loss.measure(found, reference, IDS[:20]).change_error == np.inf


def test_change_is_that_of_the_two_perplexities():
    found, reference = loss.measure(model(1), model(2), IDS), loss.measure(model(2), model(2), IDS)
    assert found.change == pytest.approx(found.perplexity / reference.perplexity - 1, rel=1e-6)
    assert (reference.change, reference.change_error) == (0, 0)


def test_a_text_of_one_token_predicts_nothing():
    with pytest.raises(InvalidInput, match="at least two tokens"):
        loss.measure(model(1), model(1), [3])


def test_a_sessions_logits_start_afresh(tiny_bundle):
    from ane_book.runtime import Session

    _, bundle = tiny_bundle("llama")
    logits = loss.fresh(Session(bundle, precision="fp32"))
    first = logits([5, 6, 7])
    logits([9, 9])
    np.testing.assert_array_equal(logits([5, 6, 7]), first)
