"""Families that are in no usual decoder's form: their bundles against `transformers`.

Layers that keep more than a cache or none, that share keys and values, and mixtures of experts.
"""

from itertools import product

from _long import long_but
from _tiny import ROUTED, Guesses, assert_cut_anywhere, greedy, margins, prompt, rewound
from ane_book.conversion.plan import plan
from ane_book.evidence.parity import check_parity
from ane_book.layout import Recurrent, Tail
from ane_book.runtime import Session
from mlprogram import MLProgram
import numpy as np
import pytest
import torch

CONTEXT, PREFILL = 48, 8

#: Who keeps the cache, and what changes calls, caches and graphs; where packages end. Of Gemma 4
#: they end before, between and after the layers that lend.
RECURRENT = {
    "state": {"kv": "state"},
    "host": {"kv": "host", "tiers": (16,), "verify": 4},
    "apple": {"form": "apple", "state_write": "select", "silu": "tanh"},
    "shards": {"kv": "state", "shard_limit": 100_000, "tiers": (16,)},
    "one": {"functions": "one", "verify": 4, "prefill": 4, "form": "apple", "kv": "host"},
}
SPARSE = {
    "state": {"kv": "state", "shard_limit": 150_000},
    "host": {"kv": "host", "form": "apple", "silu": "tanh"},
    "one": {"kv": "host", "functions": "one", "verify": 4, "prefill": 4},
    "dispatch": {"kv": "state", "experts": "dispatch", "tiers": (16,)},
    "dispatch host": {"kv": "host", "experts": "dispatch", "form": "apple", "silu": "tanh"},
}
RECIPES = {
    "granitemoehybrid": RECURRENT,
    "lfm2": RECURRENT,
    "qwen3_5_text": RECURRENT,
    "gemma4_text": {
        "state": {"kv": "state"},
        "host": {"kv": "host", "shard_limit": 170_000, "verify": 4},
        "shards": {"kv": "state", "shard_limit": 120_000, "tiers": (16,)},
        "apple": {"form": "apple", "state_write": "select", "shard_limit": 240_000},
        "one": {
            "functions": "one", "verify": 4, "prefill": 4, "form": "apple", "kv": "host",
            "shard_limit": 240_000,
        },
    },
    "lfm2_moe": SPARSE,
    "qwen3_moe": SPARSE,
}  # fmt: skip
PAIRS = [(family, recipe) for family, own in RECIPES.items() for recipe in own]
#: One of each kind of memory, of each way to call, and of experts apart; `test_zaya.py` has one of
#: experts within.
QUICK = [
    ("granitemoehybrid", "one"), ("qwen3_5_text", "state"), ("qwen3_5_text", "host"),
    ("gemma4_text", "one"), ("lfm2_moe", "dispatch host"),
]  # fmt: skip

#: Every layer a mixture, as `experts="dispatch"` needs; and gates that no sum divides.
ALL = {
    "qwen3_moe": (("mlp_only_layers", None), ("norm_topk_prob", True)),
    "lfm2_moe": (("num_dense_layers", 0), ("norm_topk_prob", False)),
}


@pytest.fixture(scope="module")
def made(tiny_bundle):
    """`made(family, recipe)` -> (transformers model, bundle), converted once."""

    def make(family: str, recipe: str):
        options = {"context": CONTEXT, "prefill": PREFILL} | RECIPES[family][recipe]
        return tiny_bundle(family, ALL[family] if "dispatch" in recipe else (), **options)

    return make


@pytest.mark.parametrize(("family", "recipe"), long_but(PAIRS, *QUICK))
def test_tokens_and_prompts_cut_anywhere_are_those_of_transformers(made, family, recipe):
    """Chunks are full or padded by every number of columns; what is before a cut comes out of what
    is kept, of which padding is no part. In half precision the logits agree where the choice of
    experts is clear, and with the engine's own activations most do."""
    model, bundle = made(family, recipe)
    session = Session(bundle, precision="fp32")
    n = PREFILL * (3 if family == "gemma4_text" else 2) + 3  # beyond its windows
    ids = greedy(model, prompt(n), CONTEXT - n)
    assert_cut_anywhere(model, session, ids[:n])
    assert session.generate(ids[:n], max_tokens=CONTEXT).token_ids == ids[n:]
    expected, clear = model(torch.tensor([ids])).logits[0], margins(model, ids) > 0.004
    assert clear.float().mean() > 0.6
    half, engine = (
        torch.cosine_similarity(torch.from_numpy(Session(bundle, p).logits(ids)), expected, dim=1)
        for p in ("fp16", "ane")
    )
    assert half[clear].min() > 0.999
    assert (engine.median() if family in ROUTED else engine.min()) > 0.98


BACK = [
    *product(["granitemoehybrid", "qwen3_5_text"], RECURRENT), ("lfm2", "host"),
    ("gemma4_text", "shards"), ("qwen3_moe", "one"), ("lfm2_moe", "dispatch host"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "recipe"), long_but(BACK, *QUICK))
def test_going_back_and_beginning_anew_leave_nothing_behind(made, family, recipe):
    session = Session(made(family, recipe)[1], precision="fp32")
    for position in (33, 32, 21, 8, 5, 1, 0):
        again, expected = rewound(session, prompt(44), position)
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


GUESSED = [
    ("granitemoehybrid", "host"), ("granitemoehybrid", "one"),
    ("qwen3_5_text", "host"), ("qwen3_5_text", "one"), ("lfm2", "host"), ("gemma4_text", "one"),
    ("qwen3_moe", "one"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "recipe"), long_but(GUESSED, *QUICK))
def test_guesses_change_no_token(made, family, recipe):
    """Right ones, wrong ones, and some of each; after a wrong one the layers go on from before."""
    model, bundle = made(family, recipe)
    ids = greedy(model, prompt(13), 30)
    session = Session(bundle, precision="fp32")
    plain = session.generate(ids[:13], max_tokens=30)
    guessed = session.generate(ids[:13], max_tokens=30, draft=Guesses(ids))
    assert plain.token_ids == guessed.token_ids == ids[13:]
    assert 0 < guessed.accepted < guessed.drafted and guessed.calls < plain.calls


def test_a_growing_chat_runs_what_is_new(made):
    session = Session(made("qwen3_5_text", "state")[1], precision="fp32")
    first = session.generate("Hello", max_tokens=6)
    longer = "Hello" + first.text + ", you"
    reused = session.generate(longer, max_tokens=8, reuse_cache=True)
    assert session.generate(longer, max_tokens=8).token_ids == reused.token_ids


#: Of rows so short some lose their tokens' experts, or their tokens, by fewer bits.
QUANTISED = {"lfm2": "lut6", "qwen3_5_text": "auto:6", "gemma4_text": "lut6", "qwen3_moe": "int8",
             "lfm2_moe": "lut8", "granitemoehybrid": "int8"}  # fmt: skip


@pytest.mark.parametrize("family", long_but(QUANTISED, "qwen3_5_text", "qwen3_moe"))
def test_quantised_programs_are_what_pytorch_says_of_their_weights(tiny_bundle, family):
    """Matrices alone are stored in few bits: taps of a convolution stay as they are."""
    options = {"context": CONTEXT, "prefill": PREFILL, "quant": QUANTISED[family]}
    few = tiny_bundle(family, **options)[1]
    found = check_parity(few)
    assert found.passed, found.reason
    none = {"quant": "none", "quant_head": "none"}
    plain = plan(few.config, few.recipe.model_copy(update=none))
    size = sum(n for file, n in few.manifest.files.items() if "weight" in file)
    assert size < 0.7 * plain.weight_bytes


def types(bundle) -> set[str]:
    """Of the ops of all programs."""
    packages = [bundle.path / part.package for part in bundle.manifest.packages]
    return {op.type for path in packages for op in MLProgram(path).operations}


HELD = [
    *product(["gemma4_text"], ["shards", "one"]), ("qwen3_moe", "dispatch"), ("lfm2_moe", "state"),
    ("lfm2_moe", "dispatch host"), ("qwen3_5_text", "apple"), ("granitemoehybrid", "shards"),
    ("granitemoehybrid", "apple"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "recipe"), long_but(HELD, *QUICK))
def test_parity_and_the_bytes_that_were_planned(made, family, recipe):
    _, bundle = made(family, recipe)
    found = check_parity(bundle)
    assert found.passed, found.reason
    assert bundle.recipe.silu == "native" or "silu" not in types(bundle)
    planned = plan(bundle.config, bundle.recipe)
    files = bundle.path.rglob("weight.bin")
    assert {f.parents[3].name: f.stat().st_size for f in files} == planned.packages
    functions = [part.functions[bundle.manifest.reading] for part in bundle.manifest.shards]
    caches = [t for f in functions for n, t in f.inputs.items() if f"new_{n}" in f.outputs]
    caches += [t for f in functions for n, t in f.states.items()]
    tails = planned.kept_bytes(Tail | Recurrent)
    assert planned.cache_bytes + tails == sum(2 * int(np.prod(t.shape)) for t in caches)


@pytest.mark.parametrize("family", long_but(ROUTED, "lfm2_moe"))
def test_a_token_calls_its_experts_alone(made, family):
    model, bundle = made(family, "dispatch host")
    ids = prompt(30)
    session = Session(bundle, precision="fp32")
    session.logits(ids[:-1])
    session.calls.clear()
    session.decode(ids[-1])
    woken = {p.package for p in bundle.manifest.packages if p.expert is not None}
    woken &= {package for package, calls in session.calls.items() if calls}
    output = model(torch.tensor([ids]), output_router_logits=True)
    biases = [value for name, value in model.named_buffers() if name.endswith("expert_bias")]
    expected = set()
    for i, scores in enumerate(output.router_logits):
        by = scores[-1].sigmoid() + biases[i] if biases else scores[-1]
        chosen = by.topk(model.config.num_experts_per_tok).indices.tolist()
        expected |= {f"layer_{i:02d}_expert_{expert:03d}.mlpackage" for expert in chosen}
    assert woken == expected
    planned = plan(bundle.config, bundle.recipe)
    assert planned.woken(CONTEXT * 100) == pytest.approx(bundle.config.num_experts * 3)
