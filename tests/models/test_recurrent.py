"""Families whose layers keep more than a cache, or none: their bundles against `transformers`."""

from _tiny import greedy, prompt, tiny_model, write_checkpoint
import ane_book
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.models import find, read_config
from ane_book.models.base.convolved import CausalConvolution, GatedConvolution
from ane_book.runtime import Session
from ane_book.weights.random import RandomSource
from mlprogram.package.reader import Package
import numpy as np
import pytest
from test_models import decoder_of, logits
import torch

FAMILIES = ["lfm2"]
CONTEXT, PREFILL = 48, 8

#: Recipes of a bundle: who keeps the cache, and what changes calls, caches and graphs.
RECIPES = {
    "state": {"kv": "state"},
    "host": {"kv": "host", "tiers": (16,), "verify": 4},
    "apple": {"form": "apple", "state_write": "select", "silu": "tanh"},
    "shards": {"kv": "state", "verify": 4, "shard_limit": 100_000},
    "one": {"functions": "one", "verify": 4, "prefill": 4, "form": "apple", "kv": "host"},
}


@pytest.fixture(scope="module")
def made(tiny_bundle):
    """`made(family, recipe)` -> (transformers model, bundle), converted once."""

    def make(family: str, recipe: str):
        return tiny_bundle(family, **{"context": CONTEXT, "prefill": PREFILL} | RECIPES[recipe])

    return make


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_cut_anywhere_gives_the_same(made, family, recipe):
    """Chunks are full or padded by every number of columns; what is before a cut comes out of what
    is kept, of which padding is no part."""
    model, bundle = made(family, recipe)
    ids = prompt(2 * PREFILL + 3)
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    for cut in range(1, len(ids)):
        session.reset()
        found = np.vstack([session.logits(ids[:cut]), session.logits(ids[cut:])])
        assert abs(found - expected).max() < 1e-3, cut


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(made, family, recipe):
    """In single precision; and in half, and with all that is published of the engine's arithmetic,
    those of logits that agree with the model's own."""
    model, bundle = made(family, recipe)
    ids = greedy(model, prompt(13), CONTEXT - 13)
    session = Session(bundle, precision="fp32")
    assert session.generate(ids[:13], max_tokens=CONTEXT - 13).token_ids == ids[13:]
    expected = model(torch.tensor([ids])).logits[0]
    for precision, least in (("fp16", 0.999), ("ane", 0.99)):
        found = torch.from_numpy(Session(bundle, precision).logits(ids))
        assert torch.cosine_similarity(found, expected, dim=1).min() > least, precision
        best, second = expected.topk(2, dim=1).values.T
        clear = best - second > 0.02 * (expected.amax() - expected.amin())
        assert clear.float().mean() > 0.5
        assert (found.argmax(dim=1) == expected.argmax(dim=1))[clear].all(), precision


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rewinding_and_beginning_anew_leave_nothing_behind(made, family, recipe):
    session, ids = Session(made(family, recipe)[1], precision="fp32"), prompt(44)
    for position in (33, 32, 21, 8, 5, 1, 0):
        session.reset()
        expected = session.logits(ids[: position + 7])[position:]
        session.prefill(ids[position + 7 :])
        session.rewind(position)
        again = session.logits(ids[position : position + 7])
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if "verify" in RECIPES[name]])
@pytest.mark.parametrize("family", FAMILIES)
def test_guesses_change_no_token(made, family, recipe):
    """Right ones, wrong ones, and some of each; after a wrong one the layers go on from before."""
    model, bundle = made(family, recipe)
    ids = greedy(model, prompt(9), 30)

    class Oracle:
        def propose(self, tokens, most):
            own = ids[len(tokens) : len(tokens) + most]
            return [t if (len(tokens) + i) % 3 else 1 - t % 2 for i, t in enumerate(own)]

    session = Session(bundle, precision="fp32")
    plain = session.generate(ids[:9], max_tokens=30)
    guessed = session.generate(ids[:9], max_tokens=30, draft=Oracle())
    assert plain.token_ids == guessed.token_ids == ids[9:]
    assert 0 < guessed.accepted < guessed.drafted and guessed.calls < plain.calls


@pytest.mark.parametrize("family", FAMILIES)
def test_a_growing_chat_runs_what_is_new(made, family):
    session = Session(made(family, "state")[1], precision="fp32")
    first = session.generate("Hello", max_tokens=6)
    longer = "Hello" + first.text + ", you"
    reused = session.generate(longer, max_tokens=8, reuse_cache=True)
    assert session.generate(longer, max_tokens=8).token_ids == reused.token_ids


@pytest.mark.parametrize("quant", ["int8", "lut6", "auto:6"])
@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_programs_are_what_pytorch_says_of_their_weights(tiny_bundle, family, quant):
    """Matrices alone are stored in few bits: taps of a convolution stay as they are."""
    options = {"context": CONTEXT, "prefill": PREFILL}
    plain, few = (tiny_bundle(family, quant=q, **options)[1] for q in ("none", quant))
    assert check_parity(few).passed
    sizes = [sum(n for f, n in b.manifest.files.items() if "weight" in f) for b in (plain, few)]
    assert sizes[1] < 0.7 * sizes[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_convolution_of_groups_is_in_a_program(made, family):
    _, bundle = made(family, "host")
    for part in bundle.manifest.packages:
        for function in Package(bundle.path / part.package).functions.values():
            values = {}
            for op in function.operations():
                if op.type == "const":
                    values[op.outputs[0][0]] = op.inputs["val"][0]
                assert op.type != "conv" or values[op.inputs["groups"][0]].array() == 1


def shifted(self, x, tail):
    """The convolution is padded on the other side: it takes the tokens that come."""
    after = torch.cat([tail[..., :0], x, torch.zeros_like(tail)], dim=3)
    return sum(after[..., i : i + x.shape[3]] * tap for i, tap in enumerate(self.taps))


def forgetful(self, x, tail):
    """A call begins with nothing before it."""
    return CONVOLVE(self, x, torch.zeros_like(tail))


def late(self, x, tail):
    """The gate before the convolution is that of the token before."""
    before, behind, x = self.inward(x).chunk(3, dim=1)
    before = torch.cat([before[..., :1] * 0, before[..., :-1]], dim=3)
    return self.out(behind * self.convolution(before * x, tail)), before * x


CONVOLVE = CausalConvolution.forward
ERRORS = {
    "lfm2, padding on the other side": (CausalConvolution, "forward", shifted),
    "lfm2, nothing before a call": (CausalConvolution, "forward", forgetful),
    "lfm2, a gate that is late": (GatedConvolution, "forward", late),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_deliberate_error_is_seen(monkeypatch, error):
    """Each is a slip that a port could make; logits are then off by far more than rounding."""
    family, _, _ = error.partition(",")
    model, ids = tiny_model(family), prompt(24)
    expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
    assert abs(logits(decoder, model, ids, [8, 16], CONTEXT) - expected).max() < 1e-3
    monkeypatch.setattr(*ERRORS[error])
    assert abs(logits(decoder, model, ids, [8, 16], CONTEXT) - expected).max() > 0.05


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        ("lfm2", {"conv_bias": True}, UnsupportedModel, "conv_bias = True is not supported for l"),
        ("lfm2", {"layer_types": ["conv"]}, UnsupportedModel, "of 3 layers; every layer needs one"),
        ("lfm2", {"layer_types": ["linear"] * 3}, UnsupportedModel, "one of full_attention, conv"),
        ("lfm2", {"conv_L_cache": 1}, InvalidWeights, "taps: .*greater than or equal to 2"),
    ],
)
def test_a_configuration_that_will_not_do(family, changes, error, message):
    fields = tiny_model(family).config.to_dict() | changes
    with pytest.raises(error, match=message) as caught:
        RandomSource(fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_auto_adjust_ff_dim": False},
        {"block_ffn_dim_multiplier": 1.3},
        {"block_multiple_of": 7},
        {"layer_types": None, "full_attn_idxs": [0, 2]},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
def test_an_lfm2_is_read_as_transformers_reads_it(tmp_path, changes):
    model = tiny_model("lfm2", **changes)
    folder = write_checkpoint(model, tmp_path / "checkpoint")
    config = read_config(model.config.to_dict() | changes)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert find("lfm2").tensors(config) == shapes
    assert ane_book.plan(str(folder), context=32).config == config
