"""The two ways of writing a state: rows cut in by `slice_update`, or a `select` over all of it."""

from collections import Counter

from mlprogram import MLProgram
import numpy as np
import pytest

CONTEXT, PREFILL = 32, 8
FORMS = ("update", "select")


def made(tiny_bundle, family: str, **recipe):
    """The bundles of a model in both forms, `update` first."""
    return [tiny_bundle(family, kv="state", state_write=form, **recipe)[1] for form in FORMS]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
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


@pytest.mark.parametrize("function", ["decode", "prefill"])
def test_what_is_held_is_the_same_to_the_bit(pair, function):
    calls = [(1, 0), (2, 9), (3, CONTEXT - PREFILL), (4, 5)]
    for old, new in zip(*(states(bundle, function, calls) for bundle in pair), strict=True):
        for name in old:
            assert old[name].any()
            np.testing.assert_array_equal(new[name], old[name])


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
    assert ops["select", "decode"].total() - ops["update", "decode"].total() == 2  # 3 are tiles
    assert ops["select", "prefill"].total() - ops["update", "prefill"].total() == 6  # 1 is a tile
