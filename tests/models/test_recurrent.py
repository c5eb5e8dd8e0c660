"""Families whose layers keep more than a cache, or none: their bundles against `transformers`."""

import json

from _tiny import assert_cut_anywhere, greedy, prompt, rewound, tiny_model, write_checkpoint
import ane_book
from ane_book.conversion.plan import plan
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.layout import Recurrent
from ane_book.models import find, read_config
from ane_book.models.base import delta
from ane_book.models.base.convolved import CausalConvolution, GatedConvolution
from ane_book.models.base.delta import GatedAttention, GatedDelta
from ane_book.models.base.layers import Attention
from ane_book.runtime import Session
from ane_book.runtime.memory import Marks, marks_after
from ane_book.weights.random import RandomSource
from mlprogram.package.reader import Package
import numpy as np
import pytest
from test_models import decoder_of, logits
import torch

FAMILIES = ["lfm2", "qwen3_5_text"]
CONTEXT, PREFILL = 48, 8

#: Recipes of a bundle: who keeps the cache, and what changes calls, caches and graphs.
RECIPES = {
    "state": {"kv": "state"},
    "host": {"kv": "host", "tiers": (16,), "verify": 4},
    "apple": {"form": "apple", "state_write": "select", "silu": "tanh"},
    "shards": {"kv": "state", "verify": 4, "shard_limit": 100_000, "tiers": (16,)},
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
    assert_cut_anywhere(model, Session(bundle, precision="fp32"), prompt(2 * PREFILL + 3))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(made, family, recipe):
    """In single precision; and in half, and with the engine's own activations, those of
    logits that agree with the model's own."""
    model, bundle = made(family, recipe)
    ids = greedy(model, prompt(13), CONTEXT - 13)
    session = Session(bundle, precision="fp32")
    assert session.generate(ids[:13], max_tokens=CONTEXT - 13).token_ids == ids[13:]
    expected = model(torch.tensor([ids])).logits[0]
    for precision, least in (("fp16", 0.999), ("ane", 0.98)):
        found = torch.from_numpy(Session(bundle, precision).logits(ids))
        assert torch.cosine_similarity(found, expected, dim=1).min() > least, precision
        best, second = expected.topk(2, dim=1).values.T
        clear = best - second > 0.02 * (expected.amax() - expected.amin())
        assert clear.float().mean() > 0.5
        assert (found.argmax(dim=1) == expected.argmax(dim=1))[clear].all(), precision


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rewinding_and_beginning_anew_leave_nothing_behind(made, family, recipe):
    session = Session(made(family, recipe)[1], precision="fp32")
    for position in (33, 32, 21, 8, 5, 1, 0):
        again, expected = rewound(session, prompt(44), position)
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


def amnesiac(self, x, real, tail, memory):
    """A call begins with an empty memory."""
    return DELTA(self, x, real, tail, memory * 0)


def ungated(self, x, *given):
    """Heads are projected as they are."""
    y, *new = Attention.forward(self, x, *given)
    return self.mixed(y), *new


def late_decay(q, k, v, beta, g, memory):
    """A token decays the memory after it has written, not before."""
    return RULE(q, k, v, beta, torch.cat([g[..., :1] * 0, g[..., :-1]], dim=3), memory)


def unwritten(q, k, v, beta, g, memory):
    """Queries read what was there before the call."""
    return RULE(q, k, v, beta, g, memory)[0] * 0 + (memory @ q), memory


CONVOLVE, DELTA, RULE = CausalConvolution.forward, GatedDelta.forward, delta.delta_rule
ERRORS = {
    "qwen3_5_text, padding on the other side": (CausalConvolution, "forward", shifted),
    "qwen3_5_text, nothing before a call": (CausalConvolution, "forward", forgetful),
    "qwen3_5_text, an empty memory": (GatedDelta, "forward", amnesiac),
    "qwen3_5_text, no gate": (GatedAttention, "forward", ungated),
    "qwen3_5_text, a decay that is late": (delta, "delta_rule", late_decay),
    "qwen3_5_text, nothing is written": (delta, "delta_rule", unwritten),
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
        ("qwen3_5_text", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate = False"),
        ("qwen3_5_text", {"attention_bias": True}, UnsupportedModel, "attention_bias = True"),
        ("qwen3_5_text", {"layer_types": ["conv"] * 3}, UnsupportedModel, "full_attention, linear"),
        ("qwen3_5_text", {"linear_num_value_heads": 5}, InvalidWeights, "5 value heads do not div"),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 0}, InvalidWeights, "taps: .*greater than or"),
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


def net() -> GatedDelta:
    """A DeltaNet of odd sizes with random weights."""
    torch.manual_seed(3)
    made = GatedDelta(16, heads=6, key_heads=2, sizes=(12, 20), taps=3, eps=1e-6)
    for value in made.parameters():
        value.data.normal_()
    return made.requires_grad_(False)


@pytest.mark.parametrize("padding", range(1, 8))
def test_padding_leaves_the_memory_as_it_is(padding):
    """Whatever the columns hold; and if they counted as tokens, it would not be so."""
    made, x = net(), torch.randn(1, 16, 1, 8)
    tail, memory = torch.randn(1, 168, 1, 2), torch.randn(1, 6, 20, 12)
    n = 8 - padding
    real = (torch.arange(8) < n).float().view(1, 1, 1, 8)
    y, _, expected = made(x[..., :n], torch.ones(1, 1, 1, n), tail, memory)
    found, _, kept = made(x, real, tail, memory)
    torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[..., :n], y, rtol=1e-5, atol=1e-5)
    assert (made(x, torch.ones_like(real), tail, memory)[2] - expected).abs().max() > 0.05


@pytest.mark.parametrize("T", [1, 2, 3, 8, 13, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_chunk_is_its_steps_even_where_keys_are_alike(T, dtype):
    """In half precision too: the inverse has no number that is larger than what comes of it."""
    torch.manual_seed(T)
    k = torch.randn(1, 3, 12, 1) + 0.01 * torch.randn(1, 3, 12, T)
    k = k / (k * k).mean(dim=2, keepdim=True).sqrt()
    q, v = torch.randn(1, 3, 12, T) / 4, torch.randn(1, 3, 20, T)
    beta, g = 0.9 + 0.1 * torch.rand(1, 3, 1, T), -0.01 * torch.rand(1, 3, 1, T)
    memory, read = torch.zeros(1, 3, 20, 12), []
    found, after = delta.delta_rule(*(x.to(dtype) for x in (q, k, v, beta, g, memory)))
    for t in range(T):
        one = (x[..., t : t + 1] for x in (q, k, v, beta, g))
        y, memory = delta.delta_rule(*one, memory)
        read.append(y)
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for own, expected in ((found, torch.cat(read, dim=3)), (after, memory)):
        assert (own.float() - expected).abs().max() < tolerance * expected.abs().max()


def test_softplus_holds_small_and_large_numbers():
    x = torch.linspace(-16, 60, 500, dtype=torch.float64)
    found, expected = delta.softplus(x), torch.nn.functional.softplus(x)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
    x = x[x > -8].half()  # whose results are no subnormal numbers
    found, expected = delta.softplus(x).double(), torch.nn.functional.softplus(x.double())
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=0)


def test_a_decay_of_16_a_token_is_finite_over_any_call():
    """Sums of 64 tokens are far beyond what exp takes; half precision then has 0."""
    q = k = torch.ones(1, 1, 12, 64).half()
    g = torch.full((1, 1, 1, 64), -16.0).half()
    read, memory = delta.delta_rule(q, k, k, g * 0 + 1, g, torch.ones(1, 1, 12, 12).half())
    assert read.isfinite().all() and memory.isfinite().all()


def test_the_engines_own_silu_would_not_do(monkeypatch, tiny, tmp_path):
    """What it is published to be off near 0 grows in the norm behind it."""
    model, folder = tiny("qwen3_5_text")
    ids = prompt(24)
    expected, least = model(torch.tensor([ids])).logits[0], []
    for form in (delta.silu, torch.nn.functional.silu):
        monkeypatch.setattr(delta, "silu", form)
        out = tmp_path / form.__module__
        bundle = ane_book.convert(str(folder), out=out, context=32, prefill=8)
        found = torch.from_numpy(Session(bundle, "ane").logits(ids))
        least.append(torch.cosine_similarity(found, expected, dim=1).min())
    assert least[0] > 0.98 and least[1] < 0.8


def test_what_a_checkpoint_has_beside_its_text_model_is_left_out(tmp_path):
    """A vision tower, and layers that guess ahead; the tokens are those of the text model."""
    from safetensors.torch import load_file, save_file

    model = tiny_model("qwen3_5_text")
    text = write_checkpoint(model, tmp_path / "text")
    whole = write_checkpoint(model, tmp_path / "whole")
    fields = json.loads((whole / "config.json").read_text())
    fields = {"model_type": "qwen3_5", "text_config": fields, "vision_config": {}}
    (whole / "config.json").write_text(json.dumps(fields))
    tensors = load_file(whole / "model.safetensors")
    renamed = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    renamed |= {"model.visual.patch.weight": torch.ones(3), "mtp.norm.weight": torch.ones(3)}
    save_file(renamed, whole / "model.safetensors")
    found = [
        ane_book.convert(str(folder), out=tmp_path / f"{folder.name} made", context=32)
        for folder in (text, whole)
    ]
    answers = [Session(bundle).generate(prompt(9), max_tokens=12).token_ids for bundle in found]
    assert answers[0] == answers[1]
    renamed["model.other.weight"] = torch.ones(3)
    save_file(renamed, whole / "model.safetensors")
    with pytest.raises(InvalidWeights, match="tensor model.other.weight is left over"):
        ane_book.convert(str(whole), out=tmp_path / "refused", context=32)


def test_a_memory_counts_whatever_the_context(made):
    _, bundle = made("qwen3_5_text", "state")
    planned = plan(bundle.config, bundle.recipe)
    (part,) = bundle.manifest.shards
    states = part.functions["decode"].states
    assert states.keys() == {"cache", "memory"}  # more than two are reported to fail
    assert planned.kept_bytes(Recurrent) == 2 * np.prod(states["memory"].shape)
    assert planned.cache_bytes == 2 * np.prod(states["cache"].shape)
    assert "whatever the context" in dict(planned.facts())["memory"]


def test_copies_are_kept_where_several_tokens_began_or_ended():
    marks: Marks = {}
    for start, stop, several in ((0, 8, True), (8, 13, True), (13, 14, False), (14, 15, False)):
        marks = marks_after(marks, start, stop, several)
    assert marks == {8: True, 13: True, 15: False}
    assert marks_after(marks, 13, 14, False) == {8: True, 13: True, 14: False}
    assert marks_after(marks, 8, 16, True) == {8: True, 16: True}
