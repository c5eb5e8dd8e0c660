"""Options that change how a model is computed, and not what: each bundle against the usual one.

Parity holds the bundles to PyTorch's model, too.
"""

from _tiny import prompt
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
import numpy as np
import pytest

CONTEXT, K = 32, 4
STATE, HOST, SELECT = {"kv": "state"}, {"kv": "host"}, {"state_write": "select"}
APPLE, TANH = {"form": "apple"}, {"silu": "tanh"}
ONE = {"functions": "one", "verify": K, "prefill": None}
GUESSES = {"tiers": (16,), "verify": K, "shard_limit": 100_000}


def long(*case):
    return pytest.param(*case, marks=pytest.mark.long)


#: A family, the recipe of both bundles, and what only the other one is. Those with memories and
#: experts are converted by these options in tests/models/test_family_bundles.py.
CASES = [
    long("gemma3_text", STATE, APPLE),
    ("gemma3_text", STATE | SELECT, APPLE),
    long("gemma3_text", HOST, APPLE),
    long("hunyuan_v1_dense", STATE, APPLE),  # heads are normed after they are rotated
    long("olmo2", HOST, APPLE),  # queries are normed whole
    long("llama", GUESSES, APPLE),
    ("llama", ONE | {"tiers": (16,)}, APPLE),
    long("llama", HOST | TANH | {"argmax_output": True}, APPLE),
    long("llama", STATE, ONE),
    ("llama", HOST, ONE),
    long("gemma3_text", STATE, ONE),
    long("gemma3_text", HOST, ONE),
    long("llama", {"argmax_output": True}, ONE),
    long("llama", {"tiers": (8, 16)}, ONE),
    long("llama", {"quant": "int8"}, ONE),
    long("llama", {"quant": "lut6"}, ONE),
    long("llama", {"shard_limit": 100_000}, ONE),
    long("llama", SELECT, ONE),
    long("llama", STATE, SELECT),
    long("gemma3_text", STATE, SELECT),
    long("llama", GUESSES, SELECT),  # bits of both are in test_state_writes.py
    ("llama", STATE, TANH),
]


@pytest.mark.parametrize(("family", "recipe", "more"), CASES, ids=str)
def test_tokens_and_logits_are_the_same(tiny_bundle, family, recipe, more):
    """Prompts end with all remainders of a call, and at the end of the cache."""
    bundle = tiny_bundle(family, **recipe | more)[1]
    usual = Session(tiny_bundle(family, **recipe)[1], precision="fp32")
    other = Session(bundle, precision="fp32")
    for tokens in () if recipe.get("argmax_output") else (1, 3, 4, 5, 7, 8, 9, 11, 21, CONTEXT):
        for session in (usual, other):
            session.reset()
        ids = prompt(tokens)
        np.testing.assert_allclose(other.logits(ids), usual.logits(ids), rtol=1e-4, atol=1e-4)
    for text in ("a", "xyxyxyxy", "Hello", "x" * (CONTEXT - 3)):
        wanted = usual.generate(text, max_tokens=CONTEXT)
        assert other.generate(text, max_tokens=CONTEXT).token_ids == wanted.token_ids
        if "verify" in bundle.manifest.functions:
            guessed = other.generate(text, max_tokens=CONTEXT, draft="lookup")
            assert guessed.token_ids == wanted.token_ids and guessed.calls <= wanted.calls
    assert all(other.tiers.values())
    assert check_parity(bundle).passed
