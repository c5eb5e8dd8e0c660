"""ZAYA in ANE form against `transformers`: the same weights, the same logits."""

from _zaya import SIZES, VOCABULARY, tiny_zaya
from ane_book.host import causal_mask
from ane_book.models import find, read_config
from ane_book.models.base.decoder import Decoder
import numpy as np
import pytest
import torch

CONTEXT = 112


def decoder_of(model, strategy: str = "packed") -> Decoder:
    config = read_config(model.config.to_dict()).model_copy(update={"experts": strategy})
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return Decoder.from_weights(config, weights.__getitem__)


def some_ids(tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (tokens,), generator=generator).tolist()


def logits(decoder: Decoder, model, ids: list[int], chunks: list[int]) -> torch.Tensor:
    """Logits (n, V) of `ids`, run in calls of the given lengths over one cache and one tail."""
    config, S, at, found = decoder.config, CONTEXT, 0, []
    host = find(config.architecture).host(config)
    ((channels, W),) = decoder.tails.values()
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


@pytest.mark.parametrize("strategy", ["dense", "packed"])
@pytest.mark.parametrize("chunks", [[24], [1] * 24, [8, 8, 1, 7]], ids=["whole", "steps", "mixed"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_equal_those_of_transformers(size, chunks, strategy):
    model, ids = tiny_zaya(size), some_ids(24)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder_of(model, strategy), model, ids, chunks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_are_those_of_the_checkpoint(size):
    model = tiny_zaya(size)
    config = read_config(model.config.to_dict())
    found = find(config.architecture).tensors(config)
    tied = find(config.architecture).repeats(config)
    state = {n: tuple(v.shape) for n, v in model.state_dict().items() if n not in tied}
    assert found == state


@pytest.mark.parametrize("size", SIZES)
def test_tokens_take_different_experts_and_some_take_none(size):
    """Else nothing here would be shown of the router."""
    model = tiny_zaya(size)
    output = model(torch.tensor([some_ids(100)]), output_router_logits=True)
    none = 0
    for layer, scores in zip(model.model.layers, output.router_logits, strict=True):
        biases = layer.mlp.gate.balancing_biases
        taken = (scores.softmax(dim=1) + biases).argmax(dim=1).bincount(minlength=len(biases))
        assert (taken > 3).sum() >= 2, taken
        none += taken[-1]
    assert none > 3
