"""Decoders with mixtures of experts in some layers: routers, and files that hold the experts."""

from _tiny import ROUTED, prompt, tiny_model, write_checkpoint
from ane_book.errors import InvalidWeights
from ane_book.models import find, read_config
from ane_book.weights import open_source
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from test_models import decoder_of, logits
import torch


@pytest.mark.parametrize("step", [1, 2, 3])
def test_which_layers_are_dense_is_where_transformers_looks_for_it(step):
    """And gates are divided by their sum where it says so."""
    changes = {"num_hidden_layers": 4, "decoder_sparse_step": step, "norm_topk_prob": step > 1}
    model = tiny_model("qwen3_moe", **changes)
    config = read_config(model.config.to_dict())
    mixed = [i for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts")]
    assert find("qwen3_moe").signatures(config).mixed == mixed
    ids = prompt(20)
    expected = model(torch.tensor([ids])).logits[0]
    assert abs(logits(decoder_of(model), model, ids, [20], 32) - expected).max() < 1e-4


@pytest.mark.parametrize("family", ROUTED)
def test_files_hold_experts_one_by_one_or_as_stacks(tmp_path, family):
    """As they are published, and as `transformers` 5 has them in memory."""
    model = tiny_model(family)
    folder = write_checkpoint(model, tmp_path / "one by one")
    stacked = write_checkpoint(model, tmp_path / "stacked")
    state = {n: v.contiguous() for n, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, stacked / "model.safetensors")
    assert any(".experts.6." in name for name in load_file(folder / "model.safetensors"))
    for place in (folder, stacked):
        source = open_source(place)
        assert sorted(source.names()) == sorted(state)
        for name in source.names():
            np.testing.assert_array_equal(source.tensor(name), state[name].numpy(), err_msg=name)


@pytest.mark.parametrize("family", ROUTED)
def test_an_expert_that_is_missing_is_named(tmp_path, family):
    folder = write_checkpoint(tiny_model(family), tmp_path / "checkpoint")
    state = load_file(folder / "model.safetensors")
    lost = next(name for name in state if ".2." in name and ".experts.4." in name)
    del state[lost]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InvalidWeights, match=f"tensor {lost} is missing"):
        open_source(folder)
