"""A bundle whose packages have one function, for K tokens: prompts, decode and guesses."""

from _long import long_but
from _tiny import REPRESENTATIVES, prompt
from _zaya import maker
import ane_book
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session, caches
from mlprogram.ane import cost
from mlprogram.package.description import Package
import numpy as np
import pytest

CONTEXT, K = 32, 4


def made(tiny_bundle, family: str, **recipe):
    """The bundle with one function, and the usual one."""
    one = tiny_bundle(family, context=CONTEXT, functions="one", verify=K, prefill=None, **recipe)
    return one[1], tiny_bundle(family, context=CONTEXT, **recipe)[1]


@pytest.fixture(params=["state", "host"])
def kv(request):
    return request.param


@pytest.mark.parametrize("family", long_but(REPRESENTATIVES, "llama", "gemma3_text"))
def test_tokens_and_logits_are_those_of_the_usual_two(tiny_bundle, family, kv):
    one, two = (Session(b, precision="fp32") for b in made(tiny_bundle, family, kv=kv))
    for tokens in (1, K - 1, K, K + 1, 2 * K + 3, CONTEXT):  # all remainders of a call, and the end
        for session in (one, two):
            session.reset()
        ids = prompt(tokens)
        np.testing.assert_allclose(one.logits(ids), two.logits(ids), rtol=1e-4, atol=1e-4)
    for text in ("a", "Hello", "x" * (CONTEXT - 3)):
        answers = [session.generate(text, max_tokens=CONTEXT) for session in (one, two)]
        assert answers[0].token_ids == answers[1].token_ids
        guessed = one.generate(text, max_tokens=CONTEXT, draft="lookup")
        assert guessed.token_ids == answers[0].token_ids and guessed.calls <= answers[0].calls


@pytest.mark.parametrize("recipe", [
    {"argmax_output": True}, {"tiers": (8, 16)}, {"quant": "int8"}, {"quant": "lut4"},
    {"shard_limit": 100_000}, {"kv": "state", "state_write": "select"},
], ids=str)  # fmt: skip
def test_in_other_recipes(tiny_bundle, recipe):
    one, two = (Session(b, precision="fp32") for b in made(tiny_bundle, "llama", **recipe))
    for text in ("xyxyxyxy", "Hello"):
        wanted = two.generate(text, max_tokens=20).token_ids
        assert one.generate(text, max_tokens=20).token_ids == wanted
        assert one.generate(text, max_tokens=20, draft="lookup").token_ids == wanted
    assert all(one.tiers.values())


def test_a_token_has_the_same_bits_in_a_prompt_and_as_an_answer(tiny_bundle, kv):
    """The column of a slot is the same in all calls, so prompt and decode are one computation."""
    one, _ = made(tiny_bundle, "llama", kv=kv)
    session = Session(one, precision="fp16")
    ids = prompt(CONTEXT)
    read = session.logits(ids)
    session.reset()
    np.testing.assert_array_equal([session.decode(token) for token in ids], read)


def test_it_is_the_only_function_and_halves_what_is_wired(tiny_bundle):
    one, two = made(tiny_bundle, "llama")
    assert one.manifest.functions == {"verify": K}
    for part in one.manifest.packages:
        assert list(Package(one.path / part.package).functions) == ["verify"]
    wired = [ane_book.plan("smollm2-135m-instruct", functions=f).wired for f in ("one", "two")]
    assert wired[0].copied * 2 == wired[1].copied and wired[0].shared == wired[1].shared
    assert two.manifest.functions.keys() == {"decode", "prefill"}


def test_parity_sees_it(tiny_bundle, kv):
    found = check_parity(made(tiny_bundle, "llama", kv=kv)[0])
    assert found.passed and {stage.function for stage in found.stages} == {"", "verify"}


def test_parity_sees_a_cache_that_holds_nothing(tiny_bundle, monkeypatch):
    """The second call of the golden tokens reads the rows that the first one cached."""
    one, _ = made(tiny_bundle, "llama", kv="host")
    assert len(one.golden()["tokens"]) == 2 * K
    monkeypatch.setattr(caches.HostCache, "accept", lambda self, outputs, call: None)
    found = check_parity(one)
    assert not found.passed and found.function == "verify"


def test_a_cache_of_one_call_is_enough_for_parity(tiny_bundle):
    one = tiny_bundle("llama", context=16, functions="one", verify=K, tiers=(K,), prefill=None)[1]
    assert len(one.golden()["tokens"]) == K and check_parity(one).passed


#: ZAYA: experts that are programs of their own or in one, and tails kept from call to call.
EXPERTS = {
    "usual": {"experts": "dispatch", "kv": "state", "tiers": (32,)},
    "odd": {"experts": "dispatch", "kv": "host"},
    "sliding": {"experts": "packed", "kv": "host"},
}


@pytest.mark.parametrize("size", long_but(EXPERTS, "usual"))
def test_experts_and_tails(size, tmp_path_factory, tmp_path):
    _, checkpoint, bundle = maker(tmp_path_factory, EXPERTS)(size)
    context = bundle.manifest.context // K * K
    recipe = EXPERTS[size] | {"context": context, "functions": "one", "verify": K}
    single = ane_book.convert(str(checkpoint), out=tmp_path / "one", **recipe)
    two, one = (Session(each, precision="fp32") for each in (bundle, single))
    for n in (1, 9, 40):
        ids = prompt(n)
        expected = two.generate(ids, max_tokens=40).token_ids
        assert one.generate(ids, max_tokens=40).token_ids == expected
        assert one.generate(ids, max_tokens=40, draft="lookup").token_ids == expected
    assert check_parity(single).passed


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


def test_a_bundle_of_the_other_kind(tiny_bundle):
    one, two = (bundle.path for bundle in made(tiny_bundle, "llama"))
    with pytest.raises(InvalidInput, match="functions = 'two', not 'one'"):
        ane_book.load(two, functions="one")
    with pytest.raises(InvalidInput, match="functions = 'one', not 'two'"):
        ane_book.load(one, functions="two")
    assert ane_book.load(one, functions="one", verify=K).block == K


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


def test_a_plan_names_one_sum(tiny_bundle):
    said = dict(ane_book.plan("smollm2-135m-instruct", functions="one").facts())
    assert "each package has one function" in said["wired"]


def test_recipes():
    assert make_recipe(functions="one").widths == {"verify": 8}
    assert make_recipe(functions="one", verify=16).widths == {"verify": 16}
    again = make_recipe(functions="one", context=64)
    assert make_recipe(**dict(again)) == again


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"prefill": 64}, "prefill goes with functions two"),
        ({"context": 60}, "a cache of 60 slots is no multiple of the 8 tokens .*; take 56"),
        ({"context": 64, "tiers": (12,)}, "a cache of 12 slots .*; take 8"),
        ({"context": 6}, "verify must be between 2 and the context of 6 tokens, not 8"),
    ],
)
def test_what_does_not_go_with_it(recipe, message):
    with pytest.raises(InvalidInput, match=message):
        make_recipe(functions="one", **recipe)


def test_encoders_have_none(tiny_encoder=None):
    with pytest.raises(InvalidInput, match="functions goes with models that generate text"):
        ane_book.plan("all-minilm-l6-v2", functions="one")
