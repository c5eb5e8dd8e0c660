"""Layers that keep more than a cache, or none: convolutions, and memories of a DeltaNet."""

from _tiny import prompt, tiny_model, write_checkpoint
import ane_book
from ane_book.conversion.plan import plan
from ane_book.layout import Recurrent
from ane_book.models import find, read_config
from ane_book.runtime import Session
from ane_book.runtime.shards import Marks, MemoryCache, marks_after
from ane_families import delta
from ane_families.delta import GatedDelta
from mlprogram.package.reader import Package
import numpy as np
import pytest
import torch


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_no_convolution_of_groups_is_in_a_program(tiny_bundle, family):
    _, bundle = tiny_bundle(family)
    for part in bundle.manifest.packages:
        for function in Package(bundle.path / part.package).functions.values():
            values = {}
            for op in function.operations():
                if op.type == "const":
                    values[op.outputs[0][0]] = op.inputs["val"][0]
                assert op.type != "conv" or values[op.inputs["groups"][0]].array() == 1


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


def test_a_memory_counts_whatever_the_context(tiny_bundle):
    _, bundle = tiny_bundle("qwen3_5_text")
    planned = plan(bundle.config, bundle.recipe)
    (part,) = bundle.manifest.shards
    states = part.functions["decode"].states
    assert states.keys() == {"cache", "memory"}  # more than two are reported to fail
    assert planned.kept_bytes(Recurrent) == 2 * np.prod(states["memory"].shape)
    assert planned.cache_bytes == 2 * np.prod(states["cache"].shape)
    assert "whatever the context" in dict(planned.rows())["memory"]


@pytest.mark.parametrize(("position", "tokens"), [(20, 1), (20, 5), (18, 9), (3, 20)])
def test_a_call_that_is_interrupted_leaves_no_half_of_it(
    tiny_bundle, monkeypatch, position, tokens
):
    """Its program has changed the memory, of which nobody was told."""
    session, ids = Session(tiny_bundle("qwen3_5_text")[1], "fp32", "mil"), prompt(30)
    expected = session.logits(ids)[position:]
    session.rewind(0)
    session.prefill(ids[:20])
    session.rewind(position)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MemoryCache, "accept", interrupted)
        session.prefill(ids[position : position + tokens])
    np.testing.assert_allclose(session.logits(ids[position:]), expected, atol=1e-5)


def test_copies_are_kept_where_several_tokens_began_or_ended():
    marks: Marks = {}
    for start, stop, several in ((0, 8, True), (8, 13, True), (13, 14, False), (14, 15, False)):
        marks = marks_after(marks, start, stop, several)
    assert marks == {8: True, 13: True, 15: False}
    assert marks_after(marks, 13, 14, False) == {8: True, 13: True, 14: False}
    assert marks_after(marks, 8, 16, True) == {8: True, 16: True}
