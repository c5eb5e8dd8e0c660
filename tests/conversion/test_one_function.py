"""A bundle whose packages have one function, for K tokens: prompts, decode and guesses."""

from _long import long_but
from _tiny import prompt
import ane_book
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session, shards
from mlprogram.ane import cost
from mlprogram.package.description import Package
import numpy as np
import pytest

CONTEXT, K = 32, 4


def made(tiny_bundle, family: str, **recipe):
    """The bundle with one function, and the usual one."""
    one = tiny_bundle(family, context=CONTEXT, functions="one", verify=K, prefill=None, **recipe)
    return one[1], tiny_bundle(family, context=CONTEXT, **recipe)[1]


@pytest.fixture(params=long_but(["state", "host"], "state"))
def kv(request):
    return request.param


def test_a_token_has_the_same_bits_in_a_prompt_and_as_an_answer(tiny_bundle, kv):
    """The column of a slot is the same in all calls, so prompt and decode are one computation."""
    one, _ = made(tiny_bundle, "llama", kv=kv)
    session = Session(one, precision="fp16")
    ids = prompt(CONTEXT)
    read = session.logits(ids)
    session.reset()
    np.testing.assert_array_equal([session.decode(token) for token in ids], read)


def test_it_is_the_only_function_and_what_is_wired_has_no_copies(tiny_bundle):
    one, two = made(tiny_bundle, "llama")
    assert one.manifest.functions == {"verify": K}
    for part in one.manifest.packages:
        assert list(Package(one.path / part.package).functions) == ["verify"]
    wired = [ane_book.plan("smollm2-135m-instruct", functions=f).wired for f in ("one", "two")]
    assert wired[0].copied == wired[0].shared == wired[1].shared < wired[1].copied
    assert two.manifest.functions.keys() == {"decode", "prefill"}


def test_parity_sees_a_cache_that_holds_nothing(tiny_bundle, monkeypatch):
    """The second call of the golden tokens reads the rows that the first one cached."""
    one, _ = made(tiny_bundle, "llama", kv="host")
    assert len(one.golden()["tokens"]) == 2 * K
    monkeypatch.setattr(shards.HostCache, "accept", lambda self, outputs, call: None)
    found = check_parity(one)
    assert not found.passed and found.function == "verify"


def test_a_cache_of_one_call_is_enough_for_parity(tiny_bundle):
    one = tiny_bundle("llama", context=16, functions="one", verify=K, tiers=(K,), prefill=None)[1]
    assert len(one.golden()["tokens"]) == K and check_parity(one).passed


def test_a_rewound_token_has_the_same_bits_beside_wrong_guesses(tiny_bundle, kv):
    one, _ = made(tiny_bundle, "llama", kv=kv, tiers=(16,))
    session, ids = Session(one, precision="fp16"), prompt(CONTEXT)
    noise, alone = np.random.default_rng(0), [session.decode(token) for token in ids]
    for at in range(CONTEXT):
        session.rewind(at)
        first = at - at % K
        wrong = noise.integers(0, 257, K - 1 - at % K)
        given = np.array([*ids[first : at + 1], *wrong])
        found = session._runner.head(session._runner.forward("verify", given, first))
        np.testing.assert_array_equal(found[at % K], alone[at])
        np.testing.assert_array_equal(session.logits(ids[at:]), alone[at:])


@pytest.mark.parametrize(
    ("model", "recipe", "what"),
    [
        ("smollm2-135m-instruct", {"verify": 16}, "16 rows over a context of 512"),
        ("qwen2.5-0.5b-instruct", {"context": 32_768}, "8 rows over a context of 32,768"),
        ("zaya1-8b", {"quant": "int8"}, "8 rows of a mixture of experts"),
    ],
)
def test_no_prediction_beyond_what_is_published(model, recipe, what):
    """The claim is of eight rows of dense models over 8K; of a mixture, against it, 4.5 times."""
    with pytest.raises(InvalidInput, match=f"a call of {what} is not published"):
        cost.predict(work_of(ane_book.plan(model, functions="one", **recipe)), "m4-max")
