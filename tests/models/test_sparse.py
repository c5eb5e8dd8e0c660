"""Decoders with mixtures of experts in some layers: routers, and files that hold the experts."""

from _tiny import ROUTED, prompt, tiny_model, write_checkpoint
from ane_book.errors import InvalidWeights
from ane_book.models import find, read_config
from ane_book.models.base.experts import layers
from ane_book.weights import open_source
from ane_families import layers as own
from ane_families.layers import SigmoidRouter, SoftmaxRouter
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from test_models import decoder_of, logits
import torch


def one_less(scores, k):
    """A token takes one expert too few."""
    return CHOSEN(scores, k - 1)


def biased(self, x):
    """The gate is what the choice was made by."""
    shares = torch.sigmoid(self.scores(x)) + self.balance
    gates = layers.of_chosen(shares, CHOSEN(shares, self.k))
    return gates / gates.sum(dim=1, keepdim=True) * self.scale


def unbiased(self, x):
    """The bias takes no part in the choice."""
    self.balance.data.zero_()
    return SIGMOID(self, x)


def unnormed(self, x):
    """The gates of a token are not divided by their sum, or are where they should not be."""
    self.normed = not self.normed
    return (SIGMOID if isinstance(self, SigmoidRouter) else SOFTMAX)(self, x)


CHOSEN, SIGMOID, SOFTMAX = layers.chosen, SigmoidRouter.forward, SoftmaxRouter.forward
ERRORS = {
    ("qwen3_moe", "an expert too few"): (layers, "chosen", one_less),
    ("qwen3_moe", "gates divided by their sum"): (SoftmaxRouter, "forward", unnormed),
    ("qwen3_moe", "gates not divided by their sum"): (SoftmaxRouter, "forward", unnormed),
    ("lfm2_moe", "an expert too few"): (own, "chosen", one_less),
    ("lfm2_moe", "the bias in the gates"): (SigmoidRouter, "forward", biased),
    ("lfm2_moe", "no bias in the choice"): (SigmoidRouter, "forward", unbiased),
    ("lfm2_moe", "gates not divided by their sum"): (SigmoidRouter, "forward", unnormed),
}


@pytest.mark.parametrize(("family", "error"), ERRORS)
def test_a_broken_router_has_other_logits(monkeypatch, family, error):
    normed = error != "gates divided by their sum"
    model, ids = tiny_model(family, norm_topk_prob=normed), prompt(40)
    expected, decoder = model(torch.tensor([ids])).logits[0], decoder_of(model)
    assert abs(logits(decoder, model, ids, [40], 64) - expected).max() < 1e-4
    monkeypatch.setattr(*ERRORS[family, error])
    for layer in decoder.layers:
        layer.eval()
    assert abs(logits(decoder, model, ids, [40], 64) - expected).max() > 0.01


@pytest.mark.parametrize("step", [1, 2, 3])
def test_which_layers_are_dense_is_where_transformers_looks_for_it(step):
    model = tiny_model("qwen3_moe", num_hidden_layers=4, decoder_sparse_step=step)
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
