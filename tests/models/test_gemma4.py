"""Gemma 4: layers that share keys and values, caches of two head sizes, inputs of each layer."""

from itertools import pairwise

from _tiny import greedy, prompt, tiny_model
from ane_book.conversion.plan import plan
from ane_book.models import read_config
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest
from test_family_bundles import RECIPES
from test_models import decoder_of, logits
import torch

CONTEXT, PREFILL = 48, 8


@pytest.fixture(scope="module")
def made(tiny_bundle):
    """`made(recipe)` -> (transformers model, bundle), converted once."""

    def make(recipe: str, **more):
        options = {"context": CONTEXT, "prefill": PREFILL} | RECIPES["gemma4_text"][recipe] | more
        return tiny_bundle("gemma4_text", **options)

    return make


@pytest.mark.long
def test_rows_of_inputs_are_those_of_transformers(made):
    model, bundle = made("state")
    own = model.model.get_per_layer_inputs(every := torch.arange(257)[None], None)
    own = model.model.project_per_layer_inputs(model.model.embed_tokens(every), own)
    off = np.abs(bundle.per_layer - own.reshape(257, 70).numpy())
    beyond = off - np.spacing(np.abs(bundle.per_layer))
    assert beyond.max() < 1e-6  # sums near 0, which processors round otherwise


def test_the_likeliest_token_needs_no_bound(made):
    """tanh is in no program that gives tokens, and the tokens are those of the logits."""
    model, bundle = made("state", argmax_output=True)
    head = MLProgram(bundle.path / "head.mlpackage", "decode")
    assert "tanh" not in {op.type for op in head.operations}
    ids = greedy(model, prompt(13), 20)
    assert Session(bundle, "fp32").generate(ids[:13], max_tokens=20).token_ids == ids[13:]


@pytest.mark.long
def test_packages_after_the_lenders_have_copies(made):
    """Two states at most in each; values are handed on as long as a layer takes them."""
    _, bundle = made("shards")
    parts = bundle.manifest.shards
    assert [part.layers for part in parts] == [*pairwise(range(8))]
    functions = [part.functions["decode"] for part in parts]
    sizes = {"_local": (1, 2, CONTEXT, 12), "": (1, 1, CONTEXT, 20)}
    for function, kind in zip(functions, bundle.config.layer_types, strict=True):
        suffix = "_local" if kind == "sliding" else ""
        names = {f"keys{suffix}", f"values{suffix}"}
        assert {n: t.shape for n, t in function.states.items()} == dict.fromkeys(
            names, sizes[suffix]
        )
    handed = [[n for n in f.outputs if n.startswith("shared")] for f in functions]
    assert list(map(len, handed)) == [0, 2, 4, 4, 4, 2, 0]
    states = made("state")[1].manifest.shards[0].functions["decode"].states
    assert {n: t.shape for n, t in states.items()} == {
        "cache": (2, 1, CONTEXT, 20), "cache_local": (4, 2, CONTEXT, 12),
    }  # fmt: skip
    planned, table = plan(bundle.config, bundle.recipe), bundle.per_layer
    assert table is not None and table.shape == (257, 70)
    assert planned.per_layer_bytes == table.nbytes
    assert "a row a token" in dict(planned.rows())["own inputs"]


def test_published_fields_are_those_that_transformers_writes():
    """Head sizes of full layers by their two fields, or by each layer's number."""
    fields = tiny_model("gemma4_text").config.to_dict()
    expected = read_config(fields)
    del fields["per_layer_config"]
    published = fields | {"global_head_dim": 20, "num_global_key_value_heads": 1}
    assert read_config(published) == expected
    unread = read_config(published | {"attention_k_eq_v": False})
    assert unread.full_kv_heads == expected.num_kv_heads  # as `transformers` has it
    plain = type(tiny_model("gemma4_text").config)().to_dict()
    assert plain["per_layer_config"].keys() == {"05", "11", "17", "23", "29"}
    assert read_config(plain).full_head_dim == 512
    assert read_config(plain | {"rope_parameters": None}) == read_config(plain)


def test_full_layers_may_have_values_of_their_own():
    model = tiny_model("gemma4_text", attention_k_eq_v=False, num_kv_shared_layers=0)
    ids = prompt(40)
    expected = model(torch.tensor([ids])).logits[0]
    assert (logits(decoder_of(model), model, ids, [40], 64) - expected).abs().max() < 3e-4
