"""Random weights: they fit `transformers`, and depend on name and seed alone."""

from _tiny import REPRESENTATIVES
from _tiny_weights import logits, rebuild, tiny_config
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.random import RandomSource
import numpy as np
import pytest
from tokenizers import Tokenizer


@pytest.mark.parametrize("family", REPRESENTATIVES)
def test_random_weights_fit_transformers(family):
    assert np.isfinite(logits(rebuild(RandomSource(tiny_config(family))))).all()


def test_random_weights_depend_on_name_and_seed_alone():
    first, again, other = (RandomSource(tiny_config("qwen3"), seed) for seed in (0, 0, 1))
    name = "model.layers.0.mlp.up_proj.weight"
    again.tensor("model.norm.weight")  # reading another tensor first changes nothing
    np.testing.assert_array_equal(first.tensor(name), again.tensor(name))
    assert not np.array_equal(first.tensor(name), other.tensor(name))
    assert not np.array_equal(first.tensor(name), first.tensor(name.replace("up", "gate")))
    assert first.tensor(name).std() == pytest.approx(0.02, rel=0.05)
    assert first.tensor("model.layers.0.self_attn.q_norm.weight").mean() == pytest.approx(
        1, abs=0.02
    )
    prints = [source.fingerprint() for source in (first, again, other)]
    assert prints[0] == prints[1] != prints[2]
    with pytest.raises(InvalidWeights, match="no tensor nope"):
        first.tensor("nope")


def test_rows_come_as_the_whole_tensor_has_them():
    source = RandomSource(tiny_config("qwen3"))
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        parts = [*source.rows(name, 7)]
        assert {len(part) for part in parts[:-1]} == {7}
        np.testing.assert_array_equal(np.concatenate(parts), source.tensor(name))


def test_random_model_has_a_tokenizer_when_there_is_room():
    files = RandomSource(tiny_config("llama", vocab_size=300)).tokenizer()
    tokenizer = Tokenizer.from_str(files.json)
    ids = tokenizer.encode("Ça va? 12 👍\n<|endoftext|>").ids
    assert ids[-1] == 256 == files.eos_token_ids[0] and max(ids[:-1]) < 256
    assert tokenizer.decode(ids) == "Ça va? 12 👍\n"
    with pytest.raises(UnsupportedModel, match="257 or more"):
        RandomSource(tiny_config("llama", vocab_size=100)).tokenizer()
    with pytest.raises(UnsupportedModel, match="the configuration: model_type 'gpt2'"):
        RandomSource(tiny_config("gpt2"))
