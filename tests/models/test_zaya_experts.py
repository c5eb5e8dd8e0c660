"""ZAYA with its experts as programs: cache, tails and the router's state stay with the trunks.

A token takes one expert or none; the one that takes none wakes nobody.
"""

from _long import long_but
from _tiny import assert_cut_anywhere, prompt
from _zaya import PREFILL, SIZES, continued, maker
import ane_book
from ane_book.conversion.plan import plan
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
import numpy as np
import pytest
import torch

#: Of each size: how its experts are programs, and who keeps the cache.
RECIPES = {
    "usual": {"experts": "dispatch", "kv": "state"},
    "odd": {"experts": "dispatch", "kv": "host"},
    "sliding": {"experts": "dispatch", "kv": "state"},
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    return maker(tmp_path_factory, RECIPES)


@pytest.mark.parametrize("size", long_but(SIZES, "usual"))
def test_logits_and_64_greedy_tokens_are_those_of_transformers(apart, size):
    model, _, bundle = apart(size)
    ids, expected, found = continued(model, bundle)
    assert abs(found - expected).max() < 1e-3
    assert found[29:-1].argmax(axis=1).tolist() == ids[30:]
    half = Session(bundle).logits(ids).ravel()
    cosine = half @ expected.ravel() / np.linalg.norm(half) / np.linalg.norm(expected)
    assert cosine > 0.999


@pytest.mark.parametrize("size", long_but(SIZES, "usual"))
def test_a_prompt_cut_anywhere_and_rewinding_give_the_same(apart, size):
    model, _, bundle = apart(size)
    ids = prompt(2 * PREFILL + 3)
    session = Session(bundle, precision="fp32")
    expected = assert_cut_anywhere(model, session, ids)
    for position in (PREFILL + 1, 3, 0):
        session.rewind(position)
        assert abs(session.logits(ids[position:]) - expected[position:]).max() < 1e-3


def chosen_by(model, ids: list[int]) -> list[np.ndarray]:
    """The expert of each token, by layer, as `transformers` has it; E is none of them."""
    output = model(torch.tensor([ids]), output_router_logits=True)
    return [
        (scores.softmax(dim=1) + layer.mlp.gate.balancing_biases).argmax(dim=1).numpy()
        for layer, scores in zip(model.model.layers, output.router_logits, strict=True)
    ]


@pytest.mark.parametrize("size", long_but(SIZES, "usual"))
def test_a_token_calls_its_expert_alone_and_none_where_it_takes_none(apart, size):
    model, _, bundle = apart(size)
    ids, E = prompt(60), bundle.config.num_experts
    layers = chosen_by(model, ids)
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
        expected = {(i, int(choice[t])) for i, choice in enumerate(layers) if choice[t] < E}
        assert woken == expected
        around = len(layers) + 1 + len(bundle.manifest.head)
        assert calls.total() == around + len(expected)
        nobody += len(expected) < len(layers)
    assert nobody, "some token takes no expert, or nothing is shown of those"


@pytest.mark.parametrize("size", long_but(SIZES, "usual"))
def test_parity_and_the_bytes_that_were_planned(apart, size):
    _, checkpoint, bundle = apart(size)
    found = check_parity(bundle, checkpoint)
    assert found.passed, found.reason
    assert written(bundle) == plan(bundle.config, bundle.recipe).packages


@pytest.mark.long
@pytest.mark.parametrize("quant", ["int8", "lut4"])
def test_convolutions_over_tokens_keep_their_bits_as_planned(apart, tmp_path, quant):
    """Matrices alone are compressed; a depthwise or grouped convolution is none."""
    _, checkpoint, _ = apart("usual")
    recipe = {"context": 64, "prefill": PREFILL, "quant": quant}
    bundle = ane_book.convert(str(checkpoint), out=tmp_path / "bundle", **recipe)
    assert written(bundle) == plan(bundle.config, bundle.recipe).packages


def written(bundle) -> dict[str, int]:
    """Bytes of each package's weight file."""
    files = bundle.path.rglob("weight.bin")
    return {file.parents[3].name: file.stat().st_size for file in files}
