"""Folders of safetensors, written by `transformers`: what they give, and how they fail."""

import json
from pathlib import Path
import shutil

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
from ane_book.weights.scales import SUFFIXES, static_activations
from ane_book.weights.tokenizer import byte_level
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

GROUPS = {"group_0": {"input_activations": {"num_bits": 8, "dynamic": False}}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
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


def damage_folder(folder: Path, kind: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    index, state = folder / "model.safetensors.index.json", load_file(weights)
    if kind == "cut short":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif kind == "cut in header":
        weights.write_bytes(weights.read_bytes()[:50])
    elif kind == "empty":
        weights.write_bytes(b"")
    elif kind == "missing shard":
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": "other.safetensors"}}))
    elif kind == "shard elsewhere":
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../x.safetensors"}}))
    elif kind == "bad index":
        index.write_text("{}")
    elif kind == "missing tensor":
        save_file({k: v for k, v in state.items() if k != "model.norm.weight"}, weights)
    elif kind == "left over":
        save_file(state | {"model.layers.9.mlp.up_proj.weight": torch.zeros(3)}, weights)
    elif kind == "misshapen":
        save_file(state | {"model.norm.weight": torch.zeros(3)}, weights)
    elif kind == "type":
        save_file(state | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, weights)
    elif kind == "twice":
        save_file({"model.norm.weight": torch.zeros(64)}, folder / "more.safetensors")
    elif kind == "no weights":
        weights.unlink()
    elif kind == "no config":
        config.unlink()
    elif kind == "config not json":
        config.write_text("{")
    elif kind == "config a list":
        config.write_text("[]")
    else:
        field, _, value = kind.partition("=")
        edit_json(config, **{field: json.loads(value) if value else ...})


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("cut short", InvalidWeights, "model.safetensors: cut short"),
        ("cut in header", InvalidWeights, "model.safetensors: cut short"),
        ("empty", InvalidWeights, "model.safetensors: cut short"),
        ("missing shard", InvalidWeights, "shard other.safetensors, which is missing"),
        ("shard elsewhere", InvalidWeights, "outside of its folder"),
        ("bad index", InvalidWeights, "no weight_map"),
        ("missing tensor", InvalidWeights, "tensor model.norm.weight is missing"),
        ("left over", InvalidWeights, "tensor model.layers.9.mlp.up_proj.weight is left over"),
        ("misshapen", InvalidWeights, r"model.norm.weight has shape \(3,\).*asks for \(64,\)"),
        ("type", UnsupportedModel, "model.norm.weight is of type I8"),
        ("twice", InvalidWeights, "model.norm.weight is in model.safetensors as well"),
        ("no weights", WeightsNotFound, "no .safetensors file"),
        ("no config", WeightsNotFound, "config.json is missing"),
        ("config not json", InvalidWeights, "config.json: not JSON"),
        ("config a list", InvalidWeights, "config.json: holds a list"),
        ("hidden_size", InvalidWeights, "config.json: the field 'hidden_size' is missing"),
        ("hidden_size=[1]", InvalidWeights, "config.json: hidden_size: .*integer"),
        ("rope_parameters=1", InvalidWeights, "config.json: rope_parameters is 1, not an object"),
        ("num_key_value_heads=3", InvalidWeights, "config.json: .*4 heads do not divide by 3"),
        ('model_type="mamba"', UnsupportedModel, "config.json: model_type 'mamba'.*llama"),
        ('hidden_act="gelu"', UnsupportedModel, "config.json: hidden_act = 'gelu'"),
    ],
)
def test_safetensors_that_will_not_do(tmp_path, kind, error, message):
    save_folder(tmp_path, tiny_model("llama"))
    damage_folder(tmp_path, kind)
    with pytest.raises(error, match=message) as caught:
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

    @pytest.mark.parametrize("ending", SUFFIXES)
    def test_their_tensors_are_left_out_with_a_warning(self, tmp_path, ending):
        name = self.NAME + ending
        folder = self.changed(tmp_path / "m", {name: torch.ones(1)})
        with pytest.warns(ScalesLeftOut, match=f"1 static scales .* such as {name}, are left out"):
            source = open_source(folder)
        np.testing.assert_array_equal(
            source.tensor(f"{self.NAME}.weight"),
            load_file(folder / "model.safetensors")[f"{self.NAME}.weight"],
        )

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
        with pytest.warns(ScalesLeftOut, match=r"\((fp8: activation|modelopt: quant_algo)"):
            source = open_source(self.changed(tmp_path / "static", static, settings))
        dynamic = self.changed(tmp_path / "dynamic", quantised, {"quant_method": "fp8"})
        for each in (source, open_source(dynamic)):
            found = each.tensor(f"{self.NAME}.weight")
            np.testing.assert_array_equal(found, weight.float().numpy() / 2)


@pytest.mark.parametrize(
    ("quantised", "said"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8: activation_scheme static"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt: quant_algo NVFP4"),
        ({"quant_method": "gptq", "bits": 4}, None),
        (
            {"quant_method": "compressed-tensors", "config_groups": GROUPS},
            "compressed-tensors: input_activations of group_0 not dynamic",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}}, None),
        ("fp8", None),
        (None, None),
    ],
)
def test_what_a_configuration_says_of_static_scales(quantised, said):
    assert static_activations({"quantization_config": quantised}) == said
