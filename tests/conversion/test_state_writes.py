"""The two ways of writing a state: rows cut in by `slice_update`, or a `select` over all of it."""

from collections import Counter

from _long import long_but
from _tiny import REPRESENTATIVES
import ane_book
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest

CONTEXT, PREFILL, VERIFY = 32, 8, 4
FORMS = ("update", "select")


def prompt(tokens: int) -> list[int]:
    return np.random.default_rng(4).integers(0, 256, tokens).tolist()


def made(tiny_bundle, family: str, **recipe):
    """The bundles of a model in both forms, `update` first."""
    return [tiny_bundle(family, kv="state", state_write=form, **recipe)[1] for form in FORMS]


@pytest.fixture(scope="module", params=long_but(REPRESENTATIVES, "llama", "gemma3_text"))
def pair(request, tiny_bundle):
    return made(tiny_bundle, request.param)


def states(bundle, function: str, calls: list[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
    """The states after each call of a shard's function, of T tokens at a position."""
    part = bundle.manifest.shards[0]
    program = MLProgram(bundle.path / part.package, function, precision="fp16")
    state, found = program.make_state(), []
    for seed, position in calls:
        inputs = program.random_inputs(seed) | {"position": np.array([position], np.int32)}
        program.predict(inputs, state)
        found.append({name: state.read_state(name).copy() for name in program.states})
    return found


def test_tokens_and_logits_are_the_same(pair):
    update, select = (Session(bundle, precision="fp32") for bundle in pair)
    for tokens in (1, PREFILL - 1, PREFILL, PREFILL + 1, CONTEXT):
        ids = prompt(tokens)
        for session in (update, select):
            session.reset()
        np.testing.assert_array_equal(select.logits(ids), update.logits(ids))
    for session in (update, select):
        session.reset()
    for token in prompt(CONTEXT):
        np.testing.assert_array_equal(select.decode(token), update.decode(token))


@pytest.mark.parametrize("function", ["decode", "prefill"])
def test_what_is_held_is_the_same_to_the_bit(pair, function):
    calls = [(1, 0), (2, 9), (3, CONTEXT - PREFILL), (4, 5)]
    for old, new in zip(*(states(bundle, function, calls) for bundle in pair), strict=True):
        for name in old:
            assert old[name].any()
            np.testing.assert_array_equal(new[name], old[name])


def test_guesses_and_tiers(tiny_bundle):
    recipe = {"verify": VERIFY, "tiers": (16,), "shard_limit": 100_000}
    sessions = [Session(b, precision="fp32") for b in made(tiny_bundle, "llama", **recipe)]
    text = "xyxyxyxy"
    wanted, plain, guessed = (
        session.generate(text, max_tokens=20, draft=draft)
        for session, draft in zip((*sessions, sessions[1]), (None, None, "lookup"), strict=True)
    )
    assert guessed.token_ids == plain.token_ids == wanted.token_ids
    assert all(sessions[1].tiers.values())


def test_a_select_writes_the_whole_state_and_no_law_minds(tiny_bundle):
    ops = {}
    for form, bundle in zip(FORMS, made(tiny_bundle, "llama"), strict=True):
        package = bundle.path / bundle.manifest.shards[0].package
        for function in ("decode", "prefill"):
            program = MLProgram(package, function)
            ops[form, function] = Counter(operation.type for operation in program.operations)
    for function, more in {"decode": 2, "prefill": 2}.items():
        old, new = ops["update", function], ops["select", function]
        assert old["slice_update"] == new["write_state"] == new["select"] == more
        assert not new["slice_update"] and not old["select"]
    assert ops["select", "decode"].total() - ops["update", "decode"].total() == -1
    assert ops["select", "prefill"].total() - ops["update", "prefill"].total() == 5


def test_the_recipe_keeps_it(tiny_bundle):
    update, select = made(tiny_bundle, "llama")
    assert (update.recipe.state_write, select.recipe.state_write) == FORMS
    with pytest.raises(InvalidInput, match="was converted with state_write = 'update', not 'sel"):
        ane_book.load(update.path, state_write="select")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv": "host", "state_write": "select"}, "state_write select goes with kv state"),
        ({"state_write": "scatter"}, "state_write must be 'update' or 'select', not 'scatter'"),
    ],
)
def test_it_goes_with_states(options, says):
    with pytest.raises(InvalidInput, match=says):
        make_recipe(**options)
