"""An unknown model_type: which family is nearest, and what config.json says of the difference."""

import json

import ane_book
from ane_book.errors import UnsupportedModel
from ane_book.models import read_config
import pytest
from transformers import AutoConfig


def message(fields: dict) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        read_config(fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "sentences"),
    [
        ("gemma2", ["is gemma3_text: it refuses attn_logit_softcapping = 50.0, final_logit_soft"]),
        ("arcee", ["is llama: it refuses hidden_act = 'relu2'"]),
        ("mixtral", ["is qwen3_moe: it needs moe_intermediate_size"]),
        ("gemma3n_text", ["is gemma4: it does not read activation_sparsity_pattern", "altup_num"]),
        ("olmo", ["is llama: it needs rms_norm_eps"]),
        ("helium", ["is llama: no field differs", "what differs in code alone no field says"]),
        ("gpt2", ["no family is near: config.json has no hidden_size, intermediate_size, num_att"]),
        ("mistral3", ["text_config is of model_type 'mistral', which is supported"]),
        ("qwen2_5_vl", ["text_config is of model_type 'qwen2_5_vl_text', which is none either"]),
    ],
)
def test_an_unknown_model_is_told_what_is_nearest(model_type, sentences):
    found = message(AutoConfig.for_model(model_type).to_dict())
    assert f"model_type {model_type!r} is not one this library converts; supported: bert" in found
    for sentence in sentences:
        assert sentence in found


def test_convert_says_it(tmp_path):
    fields = AutoConfig.for_model("arcee").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UnsupportedModel, match=r"config\.json: .*nearest by config.json is llama"):
        ane_book.convert(str(tmp_path), out=tmp_path / "bundle")
