"""A family with its own idea left out, or put in the wrong place, is not the model any more.

Every shape still fits in these variants, so nothing but the logits can tell.
"""

from dataclasses import replace

from _tiny import prompt, tiny_model
from _whole_decoder import Decoder
from ane_book.models import find, read_config
from ane_book.models.base.architecture import FULL
from ane_book.models.base.layers import DecoderBlock, rms_normalize
from ane_families import borrowing, gemma4, glm4, mamba, olmo3
from ane_families.alternating import UNROTATED
import numpy as np
import pytest
from test_models import logits
import torch

TOKENS = 40


#: What a configuration says otherwise, of no more than fields.
FIELDS = {
    "one token more in the window": lambda c: {"sliding_window": c.sliding_window + 1},
    "no window": lambda c: {"sliding_window": TOKENS},
    "layers without rotation rotate": lambda c: {
        "layer_types": tuple(FULL if kind == UNROTATED else kind for kind in c.layer_types)
    },
    "the context is not stretched": lambda c: {"rope_scaling": None},
    "all of a head is rotated": lambda c: {"partial_rotary_factor": 1.0},
    "all pairs of full layers turn": lambda c: {
        "rope_scaling": c.rope_scaling | {"partial_rotary_factor": 1.0}
    },
    "attention rotates": lambda c: {"rotated": True},
    "logits are as large as they come": lambda c: {"softcap": None},
}


def stretched(monkeypatch, config):
    """The sliding layers are stretched as the full ones are."""
    host = olmo3.Olmo3().host(config)
    both = host.rotary | {"rope_local": host.rotary["rope"]}
    changed = host.model_copy(update={"rotary": both})
    monkeypatch.setattr(olmo3.Olmo3, "host", lambda self, config: changed)
    return config


def norms_before(monkeypatch, config):
    """The norms of what attention and feed-forward give are norms of what they take."""

    def forward(self, hidden, cos, sin, mask, keys, values):
        y, new_keys, new_values = self.attention(
            self.after_attention(self.before_attention(hidden)), cos, sin, mask, keys, values
        )
        hidden = hidden + y
        y = self.feed_forward(self.after_feed_forward(self.before_feed_forward(hidden)))
        return hidden + y, new_keys, new_values

    monkeypatch.setattr(DecoderBlock, "forward", forward)
    return config


def halves_of_heads(monkeypatch, config):
    """Rotary pairs are i and i + R/2 of the checkpoint's rows, as in Llama."""
    plain = glm4._projections

    def unpaired(*arguments):
        return tuple(replace(part, pairs=0, rotated=0) for part in plain(*arguments))

    monkeypatch.setattr(glm4, "_projections", unpaired)
    return config


def half_a_bias(monkeypatch, config):
    """The keys have half of their biases."""
    plain = glm4._projections

    def halved(config, name, inputs=()):
        q, k, v = plain(config, name, inputs)
        return (q, replace(k, times=0.5), v) if name == "bias" else (q, k, v)

    monkeypatch.setattr(glm4, "_projections", halved)
    return config


def lent_by_the_first(monkeypatch, config):
    """Layers borrow from the first layer of their kind."""
    plain = gemma4.Gemma4.kinds

    def kinds(self, config):
        own = [kind.removesuffix(gemma4.LENDING) for kind in plain(self, config)]
        lending = {own.index(kind) for kind in config.layer_types}
        return [kind + gemma4.LENDING if i in lending else kind for i, kind in enumerate(own)]

    monkeypatch.setattr(gemma4.Gemma4, "kinds", kinds)
    return config


def own_inputs_unscaled(monkeypatch, config):
    """The table of the layers' own inputs is not multiplied by sqrt(P). (That of all, 1 / sqrt(2),
    is undone by the norm behind them.)"""
    plain, P = gemma4.Gemma4.per_layer_rows, config.per_layer_size

    def rows(self, config, read, embedding, table):
        return plain(self, config, read, embedding, (own / np.float32(P**0.5) for own in table))

    monkeypatch.setattr(gemma4.Gemma4, "per_layer_rows", rows)
    return config


def values_unnormed(monkeypatch, config):
    """Values are not normed."""
    monkeypatch.setattr(borrowing.Lending, "prepare_values", lambda self, v, axis=3: v)
    return config


def groups_swapped(monkeypatch, config):
    """Heads of one group have the keys and queries of another."""
    plain = mamba.Mamba.scan

    def scan(self, u, b, c, g, memory):
        return plain(self, u, b.flip(1), c.flip(1), g, memory)

    monkeypatch.setattr(mamba.Mamba, "scan", scan)
    return config


def one_norm_of_all_groups(monkeypatch, config):
    """The gated norm is one over the channels of all groups."""

    def forward(self, x):
        return rms_normalize(x.reshape(1, -1, 1, x.shape[3]), 1, self.eps).view(x.shape)

    monkeypatch.setattr(mamba.HeadNorm, "forward", forward)
    return config


VARIANTS = [
    ("gemma4_text", "one token more in the window"),
    ("gemma4_text", lent_by_the_first),
    ("gemma4_text", own_inputs_unscaled),
    ("gemma4_text", values_unnormed),
    ("gemma4_text", "all pairs of full layers turn"),
    ("gemma4_text", "logits are as large as they come"),
    ("smollm3", "layers without rotation rotate"),
    ("olmo3", "no window"),
    ("olmo3", stretched),
    ("olmo3", norms_before),
    ("ministral", "no window"),
    ("ministral3", "the context is not stretched"),
    ("exaone4", "layers without rotation rotate"),
    ("exaone4", "no window"),
    ("exaone4", norms_before),
    ("glm4", norms_before),
    ("glm4", halves_of_heads),
    ("glm4", "all of a head is rotated"),
    ("glm4", half_a_bias),
    ("granitemoehybrid", groups_swapped),
    ("granitemoehybrid", one_norm_of_all_groups),
    ("granitemoehybrid", "attention rotates"),
]


@pytest.mark.parametrize(("family", "broken"), VARIANTS)
def test_a_broken_variant_has_other_logits(monkeypatch, family, broken):
    model, ids = tiny_model(family), prompt(TOKENS)
    config = read_config(model.config.to_dict())
    if isinstance(broken, str):
        config = config.model_copy(update=FIELDS[broken](config))
    else:
        config = broken(monkeypatch, config)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    decoder = Decoder.from_weights(config, weights.__getitem__)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits(decoder, model, ids, [TOKENS], context=64)
    assert (found - expected).abs().max() > 0.01


@pytest.mark.parametrize("beta", [0.1, 0.0])
def test_ministral3_takes_no_context_in_which_queries_grow(beta):
    """But the factor of YaRN, where none is stated, is that of the whole context."""
    fields = tiny_model("ministral3", max_position_embeddings=512).config.to_dict()
    fields["rope_parameters"] |= {"llama_4_scaling_beta": beta}
    del fields["rope_parameters"]["factor"]
    config = read_config(fields)
    assert config.max_position == (128 if beta else 512)
    assert config.rope_scaling["factor"] == 4.0


def test_a_layer_without_rotation_gets_tables_whose_angles_are_zero():
    config = read_config(tiny_model("smollm3").config.to_dict())
    tables = find("smollm3").host(config).tables(torch.arange(9).numpy(), 16)
    assert (tables["unrotated_sin"] == 0).all()
    assert (tables["unrotated_cos"] == tables["rope_cos"][0, 0, 0, 0]).all()  # at position 0
