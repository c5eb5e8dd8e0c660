"""Folders of safetensors, written by `transformers`: what they give, and how they fail."""

import json
from pathlib import Path
import shutil

from _tiny import REPRESENTATIVES
from _tiny_gguf import write_gguf
from _tiny_weights import (
    FAMILIES,
    LLAMA3,
    edit_json,
    logits,
    parameters,
    rebuild,
    save_folder,
    tiny_model,
)
from ane_book.errors import InvalidWeights, ScalesLeftOut, UnsupportedModel, WeightsNotFound
from ane_book.weights import open_source
from ane_book.weights.safetensors import SCALES
from ane_book.weights.tokenizer import byte_level
import numpy as np
import pytest
from safetensors.torch import load_file, save, save_file
import torch


@pytest.mark.parametrize(
    ("family", "tied", "dtype"),
    [
        *((name, False, torch.float32) for name in FAMILIES),
        *((name, True, torch.float32) for name in REPRESENTATIVES),
        ("llama", False, torch.float16),
        ("qwen3_5_text", False, torch.bfloat16),
    ],
)
def test_safetensors_gives_the_model_back(tmp_path, family, tied, dtype):
    model = tiny_model(family, tied)
    source = open_source(save_folder(tmp_path, model, dtype))
    state = parameters(model, tied)
    assert source.kind == "safetensors" and sorted(source.names()) == sorted(state)
    for name, array in state.items():
        expected = torch.from_numpy(array).to(dtype).float().numpy()
        got = source.tensor(name)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        assert got.dtype == np.float32 and got.flags.writeable
        assert source.shape(name) == array.shape
    if dtype == torch.float32:
        np.testing.assert_array_equal(logits(rebuild(source)), logits(model))


def test_safetensors_sharded(tmp_path):
    model = tiny_model("qwen3")
    source = open_source(save_folder(tmp_path, model, max_shard_size="100KB"))
    assert len(source.files) > 3 and (tmp_path / "model.safetensors.index.json").exists()
    for name, array in parameters(model).items():
        np.testing.assert_array_equal(source.tensor(name), array)
    with pytest.raises(InvalidWeights, match="no tensor nope"):
        source.tensor("nope")


def test_safetensors_one_file_and_its_repeated_head(tmp_path):
    model = tiny_model("llama", tied=True)
    save_folder(tmp_path, model)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(state, path)
    assert sorted(open_source(path).names()) == sorted(parameters(model, tied=True))


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
@pytest.mark.parametrize("style", ["classic", "rope_parameters"])
def test_both_styles_of_rope_read_alike(tmp_path, style, rope):
    save_folder(tmp_path, tiny_model("llama"))
    fields = {"rope_theta": 1e6, "rope_scaling": rope, "rope_parameters": ...}
    if style == "rope_parameters":
        both = {"rope_theta": 1e6, "rope_type": "default"} | (rope or {})
        fields = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": both}
    edit_json(tmp_path / "config.json", **fields)
    config = open_source(tmp_path).config()
    assert (config["rope_theta"], config["rope_scaling"]) == (1e6, rope)
    assert "rope_parameters" not in config


def damage(folder: Path, cut=None, tensors=None, config=None, files=None) -> None:
    """Cut the weights short, or change tensors, fields or files, of which None removes one."""
    weights = folder / "model.safetensors"
    if tensors:
        state = load_file(weights) | tensors
        save_file({name: tensor for name, tensor in state.items() if tensor is not None}, weights)
    weights.write_bytes(weights.read_bytes()[:cut])
    edit_json(folder / "config.json", **config or {})
    for name, content in (files or {}).items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)


NORM, INDEX = "model.norm.weight", "model.safetensors.index.json"

#: By error and what it says: what is done to a folder.
REFUSED = {
    InvalidWeights: {
        "model.safetensors: cut short": {"cut": -10},
        "model.safetensors: cut short or not a": {"cut": 50},
        "model.safetensors: cut short or not a safetensors file": {"cut": 0},
        "shard o.safetensors, which is missing": {
            "files": {INDEX: b'{"weight_map": {"model.norm.weight": "o.safetensors"}}'}
        },
        "outside of its folder": {
            "files": {INDEX: b'{"weight_map": {"model.norm.weight": "../x.safetensors"}}'}
        },
        "no weight_map": {"files": {INDEX: b"{}"}},
        "tensor model.norm.weight is missing": {"tensors": {NORM: None}},
        "tensor model.layers.9.mlp.up is left over": {
            "tensors": {"model.layers.9.mlp.up": torch.zeros(3)}
        },
        r"norm.weight has shape \(3,\).*asks for \(64,\)": {"tensors": {NORM: torch.zeros(3)}},
        "model.norm.weight is in model.safetensors as well": {
            "files": {"more.safetensors": save({NORM: torch.zeros(64)})}
        },
        "config.json: not JSON": {"files": {"config.json": b"{"}},
        "config.json: holds a list": {"files": {"config.json": b"[]"}},
        "config.json: the field 'hidden_size' is missing": {"config": {"hidden_size": ...}},
        "config.json: hidden_size: .*integer": {"config": {"hidden_size": [1]}},
        "json: rope_parameters is 1, not an object": {"config": {"rope_parameters": 1}},
        "json: .*4 heads do not divide by 3": {"config": {"num_key_value_heads": 3}},
    },
    WeightsNotFound: {
        "no .safetensors file": {"files": {"model.safetensors": None}},
        "config.json is missing": {"files": {"config.json": None}},
    },
    UnsupportedModel: {
        "norm.weight is of type I8": {"tensors": {NORM: torch.zeros(64).to(torch.int8)}},
        "config.json: model_type 'mamba'.*llama": {"config": {"model_type": "mamba"}},
        "config.json: hidden_act = 'gelu'": {"config": {"hidden_act": "gelu"}},
    },
}


@pytest.mark.parametrize(
    ("error", "said"), [(error, said) for error, cases in REFUSED.items() for said in cases]
)
def test_safetensors_that_will_not_do(tmp_path, error, said):
    save_folder(tmp_path, tiny_model("llama"))
    damage(tmp_path, **REFUSED[error][said])
    with pytest.raises(error, match=said) as caught:
        open_source(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_safetensors_tokenizer(tmp_path):
    folder = save_folder(tmp_path, tiny_model("llama"))
    with pytest.raises(UnsupportedModel, match=r"tokenizer.json is missing"):
        open_source(folder).tokenizer()
    text = byte_level(257).json
    (folder / "tokenizer.json").write_text(text)
    settings = {
        "bos_token": {"content": "!"},
        "eos_token": "<|endoftext|>",
        "chat_template": [{"name": "default", "template": "old"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": 1}')
    files = open_source(folder).tokenizer()
    assert files.json == text and files.chat_template == "old"
    assert files.eos_token_ids == (7, 8, 256)  # with the id of eos_token
    assert (files.bos_token, files.bos_token_id) == ("!", 1)
    (folder / "chat_template.jinja").write_text("new")
    assert open_source(folder).tokenizer().chat_template == "new"
    before = open_source(folder).fingerprint()
    (folder / "chat_template.jinja").write_text("newer")
    assert open_source(folder).fingerprint() != before
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidWeights, match=r"tokenizer.json: not a tokenizer"):
        open_source(folder).tokenizer()


def test_open_source_by_what_the_path_is(tmp_path):
    with pytest.raises(WeightsNotFound, match="no such file or folder"):
        open_source(tmp_path / "nothing")
    with pytest.raises(
        WeightsNotFound, match="or genai_config.json with .onnx; this one has none of these"
    ):
        open_source(tmp_path)
    path = write_gguf(tmp_path / "a.gguf", tiny_model("llama"))
    assert open_source(str(tmp_path)).files == [path]
    shutil.copy(path, tmp_path / "b.gguf")
    with pytest.raises(WeightsNotFound, match=r"2 .gguf files; name one"):
        open_source(tmp_path)
    (tmp_path / "notes.txt").write_text("not weights, but long enough to be looked at")
    with pytest.raises(InvalidWeights, match=r"notes.txt: not a GGUF file"):
        open_source(tmp_path / "notes.txt")


class TestStaticScales:
    """Scales of quantised activations, which a bundle has no place for."""

    NAME = "model.layers.0.mlp.up_proj"

    def changed(self, folder: Path, tensors: dict, quantization: dict | None = None) -> Path:
        save_folder(folder, tiny_model("llama"))
        file = folder / "model.safetensors"
        save_file(load_file(file) | tensors, file)
        if quantization is not None:
            edit_json(folder / "config.json", quantization_config=quantization)
        return folder

    def test_their_tensors_are_left_out_with_a_warning(self, tmp_path):
        names = [self.NAME + ending for ending in SCALES]
        folder = self.changed(tmp_path / "m", {name: torch.ones(1) for name in names})
        with pytest.warns(ScalesLeftOut, match=rf"{len(names)} static scales .*up_proj\.\w+, are"):
            source = open_source(folder)
        assert sorted(source.names()) == sorted(parameters(tiny_model("llama")))

    def test_a_scale_that_belongs_to_the_weights_is_refused(self, tmp_path):
        """ModelOpt's for AWQ: without it the products are others."""
        folder = self.changed(tmp_path / "m", {f"{self.NAME}.pre_quant_scale": torch.ones(64)})
        with pytest.raises(InvalidWeights, match="pre_quant_scale"):
            open_source(folder)

    @pytest.mark.parametrize(("settings", "name"), [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale_inv"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "weight_scale"),
    ])  # fmt: skip
    def test_of_eight_bits_the_weights_are_those_without(self, tmp_path, settings, name):
        weight = torch.arange(-48, 48).repeat(64, 1).T.contiguous().to(torch.float8_e4m3fn)
        quantised = {f"{self.NAME}.weight": weight, f"{self.NAME}.{name}": torch.tensor(0.5)}
        static = quantised | {f"{self.NAME}.input_scale": torch.ones(1)}
        with pytest.warns(ScalesLeftOut, match="1 static scales"):
            source = open_source(self.changed(tmp_path / "static", static, settings))
        dynamic = self.changed(tmp_path / "dynamic", quantised, {"quant_method": "fp8"})
        for each in (source, open_source(dynamic)):
            found = each.tensor(f"{self.NAME}.weight")
            np.testing.assert_array_equal(found, weight.float().numpy() / 2)
