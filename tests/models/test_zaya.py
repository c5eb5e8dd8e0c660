"""ZAYA in ANE form against `transformers`: the same weights, the same logits."""

import json
from math import prod

from _long import long_but
from _tiny import assert_cut_anywhere, prompt, rewound, write_checkpoint
from _zaya import CONTEXT, PREFILL, SIZES, continued, maker, tiny_zaya
from ane_book.conversion.plan import plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel
from ane_book.evidence.cost import work_of
from ane_book.evidence.parity import check_parity
from ane_book.host import causal_mask
from ane_book.layout import Tail
from ane_book.models import find, read_config
from ane_book.models.base.compressed import CarriedRouter, CompressedAttention
from ane_book.models.base.decoder import Decoder
from ane_book.runtime import Session
from ane_book.weights import open_source
from ane_book.weights.random import RandomSource
import numpy as np
import pytest
import torch


def decoder_of(model, strategy: str = "packed") -> Decoder:
    config = read_config(model.config.to_dict()).model_copy(update={"experts": strategy})
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return Decoder.from_weights(config, weights.__getitem__)


def logits(decoder: Decoder, model, ids: list[int], chunks: list[int]) -> torch.Tensor:
    """Logits (n, V) of `ids`, run in calls of the given lengths over one cache and one tail."""
    config, S, at, found = decoder.config, CONTEXT, 0, []
    host = find(config.architecture).host(config)
    tail = decoder.signatures.kept["projected"]
    channels, W = tail.channels, tail.width
    cache = torch.zeros(2, config.num_layers, config.num_kv_heads, S, config.head_dim)
    tail = torch.zeros(config.num_layers, channels, 1, W + S)
    for T in chunks:
        rows = model.get_input_embeddings().weight[ids[at : at + T]]
        tables = host.tables(np.arange(at, at + T), S)
        for name, window in host.masks.items():
            mask = causal_mask(at, T, S, window)
            tables[name] = np.tile(mask, (1, 1, config.group, 1))
        given = [torch.from_numpy(tables[name]) for name in decoder.inputs]
        before = tail[..., at : at + W]
        out, keys, values, new = decoder(rows.T[None, :, None], *given, *cache, before)
        cache[0, :, :, at : at + T], cache[1, :, :, at : at + T] = keys, values
        tail[..., W + at : W + at + T] = new
        found.append(out[0, :, 0].T)
        at += T
    return torch.cat(found)


@pytest.mark.parametrize("strategy", ["dispatch", "packed"])
@pytest.mark.parametrize("chunks", [[24], [1] * 24, [8, 8, 1, 7]], ids=["whole", "steps", "mixed"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_equal_those_of_transformers(size, chunks, strategy):
    model, ids = tiny_zaya(size), prompt(24)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder_of(model, strategy), model, ids, chunks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_are_those_of_the_checkpoint(size):
    model = tiny_zaya(size)
    config = read_config(model.config.to_dict())
    found = find(config.architecture).tensors(config)
    tied = find(config.architecture).checkpoint(config).repeats
    state = {n: tuple(v.shape) for n, v in model.state_dict().items() if n not in tied}
    assert found == state


@pytest.mark.parametrize("size", SIZES)
def test_tokens_take_different_experts_and_some_take_none(size):
    """Else nothing here would be shown of the router."""
    model = tiny_zaya(size)
    output = model(torch.tensor([prompt(100)]), output_router_logits=True)
    none = 0
    for layer, scores in zip(model.model.layers, output.router_logits, strict=True):
        biases = layer.mlp.gate.balancing_biases
        taken = (scores.softmax(dim=1) + biases).argmax(dim=1).bincount(minlength=len(biases))
        assert (taken > 3).sum() >= 2, taken
        none += taken[-1]
    assert none > 3


GATES, HEADS = CarriedRouter.forward, CompressedAttention._heads


def late(self, x: torch.Tensor, T: int) -> torch.Tensor:
    """Half of the values waits for two tokens."""
    if x.shape[1] != self.kv_heads * self.dim:  # queries and keys
        return HEADS(self, x, T)
    now, waiting = x.chunk(2, dim=1)
    waiting = torch.cat([waiting[..., :1] * 0, waiting[..., :-1]], dim=3)
    return HEADS(self, torch.cat([now, waiting], dim=1), T)


def forgetful(self, x, *state):
    """The router begins anew in every layer."""
    return GATES(self, x, *(0 * before for before in state))


def certain(self, x, *state):
    """The softmax comes after all but the chosen one are masked."""
    gates, new = GATES(self, x, *state)
    return (gates != 0) * 1.0, new


def biased(self, x, *state):
    """The gate is what the choice was made by."""
    gates, new = GATES(self, x, *state)
    return gates + (gates != 0) * self.balance[:, :-1], new


ERRORS = {
    "values that wait for two tokens": (CompressedAttention, "_heads", late),
    "a router without memory": (CarriedRouter, "forward", forgetful),
    "softmax after masking": (CarriedRouter, "forward", certain),
    "biases in the gate": (CarriedRouter, "forward", biased),
    "no key scale": "attention.key_scale",  # these are 1 or 0 instead
    "no biases of the choice": "router.balance",
    "no scale of what is carried": "router.carried_scale",
    "no scale of the hidden state": "mixture_residual.scale",
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("size", ["usual", "sliding"])
def test_a_deliberate_error_is_seen(monkeypatch, size, error):
    """Each is a slip that a port could make; logits are then off by far more than rounding."""
    model, ids, slip = tiny_zaya(size), prompt(24), ERRORS[error]
    expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
    if isinstance(slip, str):
        for name, value in decoder.named_parameters():
            if name.endswith(slip):
                value.fill_(1.0 if "scale" in slip else 0.0)
    else:
        monkeypatch.setattr(*slip)
    assert (logits(decoder, model, ids, [24]) - expected).abs().max() > 0.05


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention_bias": True}, UnsupportedModel, "attention_bias = True is not supported"),
        ({"lm_head_bias": True}, UnsupportedModel, "lm_head_bias = True is not supported"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act = 'gelu' is not supported"),
        ({"num_experts_per_tok": 2}, UnsupportedModel, "num_experts_per_tok = 2 is not"),
        ({"layer_types": ["hybrid"]}, UnsupportedModel, "of 3 layers; every layer needs one of"),
        ({"layer_types": ["full"] * 3}, UnsupportedModel, "one of hybrid, hybrid_sliding"),
        ({"layer_types": ["hybrid_sliding"] * 3}, InvalidWeights, "need a sliding_window"),
        ({"rope_parameters": {"rope_theta": 1e4}}, UnsupportedModel, "not by the type of layer"),
        ({"rope_parameters": {"hybrid": {"rope_type": "yarn", "factor": 2.0}}}, UnsupportedModel,
         "of type 'yarn' are not supported for zaya"),
        ({"rope_parameters": {"hybrid": {}}}, InvalidWeights, "'rope_theta' is missing"),
        ({"rope_parameters": {"other": {}}}, InvalidWeights, "hybrid is not an object"),
        ({"layer_types": ["hybrid", "hybrid", "hybrid_sliding"], "sliding_window": 9,
          "rope_parameters": {"hybrid": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
                              "hybrid_sliding": {"rope_theta": 1e4}}}, UnsupportedModel,
         "partial_rotary_factor of 0.5 and 1.0 in one model"),
        ({"cca_time0": 0}, InvalidWeights, "taps.*greater than 0"),
        ({"num_experts": 5000}, InvalidWeights, "num_experts: .*2047"),
        ({"num_key_value_heads": 1, "head_dim": 9, "rope_parameters": None}, InvalidWeights,
         "1 KV heads of 9 dimensions have no half"),
        ({"router_hidden_size": 0}, InvalidWeights, "router_size: .*greater than 0"),
        ({"layer_types": None, "num_hidden_layers": 10**9}, UnsupportedModel, "of 1000000000 la"),
    ],
)  # fmt: skip
def test_a_configuration_that_will_not_do(changes, error, message):
    fields = tiny_zaya("usual").config.to_dict() | changes
    with pytest.raises(error, match=message) as caught:
        RandomSource(fields)
    assert "\n" not in str(caught.value)


def test_a_configuration_without_rope_has_that_of_transformers():
    given = tiny_zaya("sliding").config.to_dict()
    assert read_config(given | {"rope_parameters": None}) == read_config(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": "auto:5"}, "quant auto:5 chooses for models whose layers are seven matrices"),
        ({"quant": "stored", "experts": "dispatch"}, "chooses for the matrices of whole layers"),
    ],
)
def test_recipes_of_dense_decoders_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        make_recipe(read_config(tiny_zaya("usual").config.to_dict()), **options)


def test_a_router_with_more_experts_than_weights_is_one_clear_error(tmp_path):
    folder = write_checkpoint(tiny_zaya("usual"), tmp_path / "checkpoint")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"num_experts": 6}))
    with pytest.raises(InvalidWeights, match=r"has shape \(5.*but the configuration asks for \(7"):
        open_source(folder)


#: Of each size: who keeps the cache, and a limit that puts its layers into two programs or three.
RECIPES = {
    "usual": {"kv": "state", "shard_limit": 160_000},
    "odd": {"kv": "host", "shard_limit": 400_000},
    "sliding": {"kv": "host", "shard_limit": 150_000},
}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    return maker(tmp_path_factory, RECIPES, head_rows=100)


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_the_bundle_gives_the_logits_and_tokens_of_transformers(bundled, size):
    """Prompt and 64 greedy tokens: each the winner of its logits, those of the whole text."""
    model, _, bundle = bundled(size)
    ids, expected, found = continued(model, bundle)
    assert abs(found - expected).max() < 1e-3
    assert found[29:-1].argmax(axis=1).tolist() == ids[30:]


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_a_prompt_cut_anywhere_gives_the_same(bundled, size):
    """What is before a cut comes out of the cache and the tails; chunks are full or padded."""
    model, _, bundle = bundled(size)
    assert_cut_anywhere(model, Session(bundle, precision="fp32"), prompt(2 * PREFILL + 3))


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_rewinding_is_exact(bundled, size):
    """To any token, however long ago it was: what it is without all that came after, and to the bit
    where the calls are the same."""
    session = Session(bundled(size)[2], precision="fp32")
    for position in (33, 32, 5, 1, 0):
        again, expected = rewound(session, prompt(60), position, more=11)
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)
        if position % PREFILL == 0:
            np.testing.assert_array_equal(again, expected)


def test_a_growing_chat_runs_only_what_is_new(bundled):
    session = Session(bundled("odd")[2], precision="fp32")
    first = session.generate("Hello", max_tokens=6)
    longer = "Hello" + first.text + ", you"
    reused = session.generate(longer, max_tokens=8, reuse_cache=True)
    assert session.generate(longer, max_tokens=8).token_ids == reused.token_ids


def margins(model, ids: list[int]) -> np.ndarray:
    """How far each token's choice is ahead of the next best, in the layer where that is least."""
    scores = model(torch.tensor([ids]), output_router_logits=True).router_logits
    least = []
    for layer, own in zip(model.model.layers, scores, strict=True):
        best = (own.softmax(dim=1) + layer.mlp.gate.balancing_biases).topk(2, dim=1).values
        least.append(best[:, 0] - best[:, 1])
    return torch.stack(least).amin(dim=0).numpy()


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_half_precision_keeps_the_direction_of_logits(bundled, size):
    """Of tokens whose choice is clear. One between two experts may take the other one, and then
    says something else, in any arithmetic; few are so near."""
    model, _, bundle = bundled(size)
    ids = prompt(90)
    expected = model(torch.tensor([ids])).logits[0]
    found = torch.from_numpy(Session(bundle).logits(ids))
    cosine = torch.cosine_similarity(found, expected, dim=1).numpy()
    clear = margins(model, ids) > 0.004
    assert clear.mean() > 0.9
    assert cosine[clear].min() > 0.999


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_the_plan_counts_the_tails(bundled, size):
    """What the host holds for a session, and what a call takes, to the byte."""
    *_, bundle = bundled(size)
    planned = plan(bundle.config, bundle.recipe)
    decode = [part.functions["decode"] for part in bundle.manifest.shards]
    layout, name = bundle.manifest.layout, "projected"
    stores = [(f.call(layout), s) for f in decode for s in f.stores(layout) if s.name == name]
    taken = [store.shape(call) for call, store in stores]
    kept = [store.held(call) for call, store in stores]
    assert planned.kept_bytes(Tail) == 2 * sum(map(prod, taken)) > 0
    assert planned.kept_bytes(Tail, held=True) == 2 * sum(map(prod, kept))
    assert work_of(planned).cache_bytes == planned.cache_bytes + planned.kept_bytes(Tail)
    assert "tails" in dict(planned.facts())


@pytest.mark.parametrize("size", long_but(SIZES, "odd"))
def test_parity_holds_every_program_to_pytorch(bundled, size):
    _, checkpoint, bundle = bundled(size)
    found = check_parity(bundle, checkpoint if size == "usual" else None)
    assert found.passed, found.reason
    assert bundle.manifest.handed and bundle.golden()["router_1"].shape[1] == PREFILL
