"""ZAYA in ANE form against `transformers`: the same weights, the same logits."""

from _tiny import write_checkpoint
from _zaya import SIZES, VOCABULARY, tiny_zaya
import ane_book
from ane_book.evidence.parity import check_parity
from ane_book.host import causal_mask
from ane_book.models import find, read_config
from ane_book.models.base.decoder import Decoder
from ane_book.runtime import Session
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


PREFILL = 8
#: Of each size: who keeps the cache, and a limit that puts its layers into two programs or three.
RECIPES = {
    "usual": {"kv": "state", "shard_limit": 160_000},
    "odd": {"kv": "host", "shard_limit": 600_000, "experts": "dense"},
    "sliding": {"kv": "host", "shard_limit": 220_000},
}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """`bundled(size)` -> (transformers model, folder of its checkpoint, bundle), made once."""
    made = {}

    def make(size: str):
        if size not in made:
            model, folder = tiny_zaya(size), tmp_path_factory.mktemp(size)
            checkpoint = write_checkpoint(model, folder / "checkpoint")
            recipe = {"context": CONTEXT, "prefill": PREFILL, "head_rows": 100} | RECIPES[size]
            bundle = ane_book.convert(str(checkpoint), out=folder / "bundle", **recipe)
            made[size] = model, checkpoint, bundle
        return made[size]

    return make


@pytest.mark.parametrize("size", SIZES)
def test_the_bundle_gives_the_logits_and_tokens_of_transformers(bundled, size):
    """Prompt and 64 greedy tokens: each the winner of its logits, those of the whole text."""
    model, _, bundle = bundled(size)
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = model.generate(torch.tensor([some_ids(30)]), **options)[0].tolist()
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    found = np.vstack([session.logits(ids[:30]), *map(session.decode, ids[30:])])
    assert abs(found - expected).max() < 1e-3
    assert found[29:-1].argmax(axis=1).tolist() == ids[30:]


@pytest.mark.parametrize("size", SIZES)
def test_a_prompt_cut_anywhere_gives_the_same(bundled, size):
    """What is before a cut comes out of the cache and the tails; chunks are full or padded."""
    model, _, bundle = bundled(size)
    ids = some_ids(2 * PREFILL + 3)
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    for cut in range(1, len(ids)):
        session.reset()
        found = np.vstack([session.logits(ids[:cut]), session.logits(ids[cut:])])
        assert abs(found - expected).max() < 1e-3, cut


@pytest.mark.parametrize("size", SIZES)
def test_rewinding_is_exact(bundled, size):
    """To any token, however long ago it was: what it is without all that came after, and to the bit
    where the calls are the same."""
    session, ids = Session(bundled(size)[2], precision="fp32"), some_ids(60)
    for position in (33, 32, 5, 1, 0):
        session.reset()
        expected = session.logits(ids[: position + 11])[position:]
        session.prefill(ids[position + 11 :])
        session.rewind(position)
        again = session.logits(ids[position : position + 11])
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)
        if position % PREFILL == 0:
            np.testing.assert_array_equal(again, expected)


def test_a_growing_chat_runs_only_what_is_new(bundled):
    session = Session(bundled("odd")[2], precision="fp32")
    first = session.generate("Hello", max_tokens=6)
    longer = "Hello" + first.text + ", you"
    reused = session.generate(longer, max_tokens=8, reuse_cache=True)
    assert session.generate(longer, max_tokens=8).token_ids == reused.token_ids


@pytest.mark.parametrize("size", SIZES)
def test_parity_holds_every_program_to_pytorch(bundled, size):
    _, checkpoint, bundle = bundled(size)
    found = check_parity(bundle, checkpoint if size == "usual" else None)
    assert found.passed, found.reason
    assert bundle.manifest.handed and bundle.golden()["router_1"].shape[1] == PREFILL
