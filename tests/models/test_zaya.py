"""ZAYA in ANE form against `transformers`: the same weights, the same logits."""

import json
from math import prod

from _long import long_but
from _tiny import Guesses, assert_cut_anywhere, greedy, prompt, rewound, write_checkpoint
from _whole_decoder import Decoder
from _zaya import CONTEXT, PREFILL, SIZES, continued, maker, tiny_zaya
from ane_book.conversion.plan import plan
from ane_book.errors import InvalidWeights
from ane_book.evidence.cost import work_of
from ane_book.evidence.parity import check_parity
from ane_book.layout import Tail
from ane_book.models import find, read_config
from ane_book.runtime import Session
from ane_book.weights import open_source
from mlprogram import MLProgram
import numpy as np
import pytest
from test_models import logits
import torch


def decoder_of(model, strategy: str = "packed") -> Decoder:
    config = read_config(model.config.to_dict()).model_copy(update={"experts": strategy})
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return Decoder.from_weights(config, weights.__getitem__)


@pytest.mark.parametrize("strategy", ["dispatch", "packed"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_equal_those_of_transformers(size, strategy):
    model, ids = tiny_zaya(size), prompt(24)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder_of(model, strategy), model, ids, [8, 8, 1, 7], CONTEXT)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_are_those_of_the_checkpoint(size):
    model = tiny_zaya(size)
    config = read_config(model.config.to_dict())
    found = find(config.architecture).tensors(config)
    tied = find(config.architecture).checkpoint(config).repeats
    state = {n: tuple(v.shape) for n, v in model.state_dict().items() if n not in tied}
    assert found == state


def test_a_router_with_more_experts_than_weights_is_one_clear_error(tmp_path):
    folder = write_checkpoint(tiny_zaya("usual"), tmp_path / "checkpoint")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"num_experts": 6}))
    with pytest.raises(InvalidWeights, match=r"has shape \(5.*but the configuration asks for \(7"):
        open_source(folder)


#: Of each size: who keeps the cache, how attention is written, and a limit that puts its layers
#: into two programs or three; apart, experts are programs of their own.
RECIPES = {
    "usual": {"kv": "state", "shard_limit": 160_000},
    "odd": {"kv": "host", "shard_limit": 400_000, "form": "apple", "tiers": (32,)},
    "sliding": {"kv": "host", "functions": "one", "verify": PREFILL, "shard_limit": 150_000},
    "usual, apart": {"kv": "state", "experts": "dispatch", "silu": "tanh"},
    "odd, apart": {"kv": "host", "experts": "dispatch", "form": "apple", "tiers": (16,)},
    "sliding, apart": {
        "kv": "state", "experts": "dispatch", "functions": "one", "verify": PREFILL,
    },
}  # fmt: skip
QUICK = ("sliding", "usual, apart")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    return maker(tmp_path_factory, RECIPES, head_rows=100)


@pytest.mark.parametrize("name", long_but(RECIPES, *QUICK))
def test_the_bundle_gives_the_logits_and_tokens_of_transformers(bundled, name):
    """Prompt and 64 greedy tokens: each the winner of its logits, those of the whole text. What is
    before a cut comes out of the cache and the tails; chunks are full or padded."""
    model, _, bundle = bundled(name)
    ids, expected, found = continued(model, bundle)
    assert abs(found - expected).max() < 1e-3
    assert found[29:-1].argmax(axis=1).tolist() == ids[30:]
    assert_cut_anywhere(model, Session(bundle, precision="fp32"), prompt(2 * PREFILL + 3))


@pytest.mark.parametrize("name", long_but(RECIPES, *QUICK))
def test_rewinding_is_exact(bundled, name):
    """To any token, however long ago it was: what it is without all that came after, and to the bit
    where the calls are the same."""
    session = Session(bundled(name)[2], precision="fp32")
    for position in (33, 32, 5, 1, 0):
        again, expected = rewound(session, prompt(60), position, more=11)
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)
        if position % PREFILL == 0:
            np.testing.assert_array_equal(again, expected)


def test_guesses_change_no_token(bundled):
    model, _, bundle = bundled("sliding")
    ids, session = greedy(model, prompt(9), 30), Session(bundle, precision="fp32")
    guessed = session.generate(ids[:9], max_tokens=30, draft=Guesses(ids))
    assert guessed.token_ids == ids[9:] and 0 < guessed.accepted < guessed.drafted


def scores_of(model, ids: list[int]) -> list[torch.Tensor]:
    """By what each token chooses its expert, or none, in each layer: (T, E + 1)."""
    output = model(torch.tensor([ids]), output_router_logits=True)
    return [
        scores.softmax(dim=1) + layer.mlp.gate.balancing_biases
        for layer, scores in zip(model.model.layers, output.router_logits, strict=True)
    ]


@pytest.mark.parametrize("name", long_but(RECIPES, *QUICK))
def test_half_precision_keeps_the_direction_of_logits(bundled, name):
    """Of tokens whose choice is clear. One between two experts may take the other one, and then
    says something else, in any arithmetic; few are so near."""
    model, _, bundle = bundled(name)
    ids = prompt(90)
    expected = model(torch.tensor([ids])).logits[0]
    found = torch.from_numpy(Session(bundle).logits(ids))
    cosine = torch.cosine_similarity(found, expected, dim=1)
    best = [own.topk(2, dim=1).values for own in scores_of(model, ids)]
    clear = torch.stack([own[:, 0] - own[:, 1] for own in best]).amin(dim=0) > 0.004
    assert clear.float().mean() > 0.9
    assert cosine[clear].min() > 0.999


@pytest.mark.parametrize("name", long_but(["usual, apart", "odd, apart"], "usual, apart"))
def test_a_token_calls_its_expert_alone_and_none_where_it_takes_none(bundled, name):
    model, _, bundle = bundled(name)
    ids, E = prompt(60), bundle.config.num_experts
    layers = [scores.argmax(dim=1).tolist() for scores in scores_of(model, ids)]
    session = Session(bundle, precision="fp32")
    session.logits(ids[:-1])
    experts = {p.package: (p.layers[0], p.expert) for p in bundle.manifest.packages
               if p.expert is not None}  # fmt: skip
    nobody = 0
    for t in range(20, 60):
        session.rewind(t)
        session.calls.clear()
        session.decode(ids[t])
        calls = session.calls
        woken = {experts[package] for package in calls if package in experts}
        expected = {(i, choice[t]) for i, choice in enumerate(layers) if choice[t] < E}
        assert woken == expected
        around = len(layers) + 1 + len(bundle.manifest.head)
        assert calls.total() == around + len(expected)
        nobody += len(expected) < len(layers)
    assert nobody, "some token takes no expert, or nothing is shown of those"


@pytest.mark.parametrize("name", long_but(["usual", "odd", "usual, apart"], "usual, apart"))
def test_the_plan_counts_the_tails(bundled, name):
    """What the host holds for a session, and what a call takes, to the byte."""
    *_, bundle = bundled(name)
    planned = plan(bundle.config, bundle.recipe)
    decode = [part.functions[bundle.manifest.reading] for part in bundle.manifest.shards]
    layout, tail = bundle.manifest.layout, "projected"
    stores = [(f.call(layout), s) for f in decode for s in f.stores(layout) if s.name == tail]
    taken = [store.shape(call) for call, store in stores]
    kept = [store.held(call) for call, store in stores]
    assert planned.kept_bytes(Tail) == 2 * sum(map(prod, taken)) > 0
    assert planned.kept_bytes(Tail, held=True) == 2 * sum(map(prod, kept))
    assert work_of(planned).cache_bytes == planned.cache_bytes + planned.kept_bytes(Tail)
    assert "tails" in dict(planned.rows())


def written(bundle) -> dict[str, int]:
    """Bytes of each package's weight file."""
    files = bundle.path.rglob("weight.bin")
    return {file.parents[3].name: file.stat().st_size for file in files}


@pytest.mark.parametrize("name", long_but(RECIPES, *QUICK))
def test_parity_and_the_bytes_that_were_planned(bundled, name):
    _, checkpoint, bundle = bundled(name)
    found = check_parity(bundle, checkpoint if "usual" in name else None)
    assert found.passed, found.reason
    assert "apart" in name or "router_1" in bundle.golden()
    assert written(bundle) == plan(bundle.config, bundle.recipe).packages
    if bundle.recipe.silu == "tanh":
        packages = [bundle.path / part.package for part in bundle.manifest.packages]
        assert "silu" not in {op.type for path in packages for op in MLProgram(path).operations}
