"""Quantised checkpoints: each form is packed by an independent packer, and read back as the model
that it stands for."""

import json
from pathlib import Path

from _quantised import FORMS, quantise
from _tiny import greedy, prompt, tiny_model, write_checkpoint
from _tiny_weights import edit_json, logits, rebuild
import ane_book
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.evidence import original
from ane_book.runtime import Session
from ane_book.weights import open_source
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model whose projections are no squares, and its folder."""
    model = tiny_model("qwen3", num_hidden_layers=2)
    return model, write_checkpoint(model, tmp_path_factory.mktemp("plain"))


@pytest.fixture
def folder(plain, tmp_path):
    """A folder of its own, with the plain checkpoint's files."""
    for file in plain[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(folder: Path, changed: dict) -> None:
    """Change tensors of the file; those that are None are removed."""
    file = folder / "model.safetensors"
    state = load_file(file) | changed
    save_file({name: value for name, value in state.items() if value is not None}, file)


def stood_for(model, state: dict):
    """The model with the weights that a quantised checkpoint stands for."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in state.items()}
    return original.model(model.config.to_dict(), tensors)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read_as_the_model_that_it_stands_for(plain, folder, form):
    state = quantise(folder, FORMS[form])
    source = open_source(folder)
    assert sorted(source.names()) == sorted(state)
    for name, expected in state.items():
        got = source.tensor(name)
        assert got.dtype == np.float32 and got.flags.c_contiguous and got.flags.writeable
        assert source.shape(name) == got.shape
        np.testing.assert_allclose(got, expected, rtol=3e-7, atol=1e-9, err_msg=name)
    assert "quantization_config" not in source.config()  # what follows reads a plain model
    after = logits(rebuild(source))
    np.testing.assert_allclose(after, logits(stood_for(plain[0], state)), atol=1e-4)
    assert np.abs(after - logits(plain[0])).max() > 1e-3  # it is not the model of before


@pytest.mark.parametrize("form", ["fp8", "packed"])
def test_its_bundle_gives_the_tokens_of_transformers(plain, folder, tmp_path_factory, form):
    state = quantise(folder, FORMS[form])
    halved = {name: value.astype(np.float16).astype(np.float32) for name, value in state.items()}
    ids = greedy(stood_for(plain[0], halved), prompt(20), 10)
    bundle = ane_book.convert(
        str(folder), out=tmp_path_factory.mktemp(form) / "bundle", context=32, prefill=16
    )
    session = Session(bundle, precision="fp32")
    found = session.logits(ids)
    expected = logits_of(stood_for(plain[0], halved), ids)
    assert np.abs(found - expected).max() < 1e-3
    assert found[19:-1].argmax(axis=1).tolist() == ids[20:]
    assert np.abs(found - logits_of(plain[0], ids)).max() > 1e-2


def logits_of(model, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize(
    ("form", "part", "value", "message"),
    [
        ("fp8", "weight_scale_inv", None, "weight_scale_inv is missing"),
        ("fp8", "weight_scale_inv", torch.ones(2, 3), r"shape \(2, 3\).*asks for \(3, 2\)"),
        ("fp8", "weight_scale_inv", torch.ones(3, 2).int(), "of type I32, not F32"),
        ("float-channel", "weight_scale", None, "weight_scale is missing"),
        ("float-channel", "weight_scale", torch.ones(96), r"shape \(96,\).*asks for \(96, 1\)"),
        ("packed", "weight_scale", torch.ones(96, 3), r"asks for \(96, 4\)"),
        ("packed", "weight_shape", torch.tensor([96, 65]), "does not hold in 4 or 8 bits"),
        ("packed", "weight_shape", None, "weight_shape is missing"),
        ("packed-asymmetric", "weight_zero_point", torch.ones(96, 4).int(), r"asks for \(12, 4\)"),
        ("awq", "qzeros", None, "qzeros is missing"),
        ("awq", "scales", torch.ones(96, 4), r"shape \(96, 4\).*asks for \(4, 96\)"),
        ("awq", "qweight", torch.ones(96, 8).int(), "asks for"),
        ("gptq", "scales", None, "scales is missing"),
        ("gptq", "qzeros", torch.ones(4, 96).int(), r"asks for \(4, 12\)"),
        ("gptq", "g_idx", torch.zeros(60).int(), r"asks for \(64,\)"),
    ],
)
def test_damage_is_told_when_the_folder_is_opened(folder, form, part, value, message):
    quantise(folder, FORMS[form])
    change(folder, {f"{UP}.{part}": value})
    with pytest.raises(InvalidWeights, match=message) as caught:
        open_source(folder)
    assert str(folder) in str(caught.value) and UP in str(caught.value)


def test_a_group_beyond_the_last_is_told_when_it_is_read(folder):
    quantise(folder, FORMS["gptq-act-order"])
    change(folder, {f"{UP}.g_idx": torch.full((64,), 4).int()})
    with pytest.raises(InvalidWeights, match=r"up_proj.g_idx names groups .* among the 4"):
        open_source(folder).tensor(f"{UP}.weight")


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("awq", {"version": "gemv"}, "version is 'gemv', which is not read .read: gemm"),
        ("awq", {"bits": 3}, "bits is 3, which is not read .read: 4"),
        ("gptq", {"bits": 3}, "bits is 3, which is not read .read: 4, 8"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("gptq", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic is"),
        ("packed", {"format": "marlin-24"}, "format is 'marlin-24'"),
        ("packed", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config is"),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format"),
        ("fp8", {"load_in_8bit": True}, "weight is quantised by 'bitsandbytes'"),
        ("fp8", {"quant_method": "hqq"}, "weight is quantised by 'hqq'.*fp8, compressed-tensors"),
    ],
)
def test_a_form_that_is_not_read_is_refused_by_name(folder, form, changes, message):
    quantise(folder, FORMS[form])
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_json(folder / "config.json", quantization_config=settings | changes)
    with pytest.raises(UnsupportedModel, match=message + ".*in 16 bits"):
        open_source(folder)


@pytest.mark.parametrize("form", ["fp8", "gptq", "packed"])
def test_without_its_settings_a_checkpoint_is_no_use(folder, form):
    quantise(folder, FORMS[form])
    edit_json(folder / "config.json", quantization_config=...)
    with pytest.raises(InvalidWeights, match=r"of a quantised checkpoint, but config.json has no"):
        open_source(folder)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_that_the_model_does_not_have_must_be_zero(folder, value):
    quantise(folder, FORMS["gptq"])
    change(folder, {f"{UP}.bias": torch.full((96,), value)})
    if value:
        with pytest.raises(InvalidWeights, match="up_proj.bias is left over"):
            open_source(folder)
    else:
        assert f"{UP}.bias" not in open_source(folder).names()


def test_an_unread_method_beside_plain_weights_is_no_fault(folder):
    edit_json(folder / "config.json", quantization_config={"quant_method": "modelopt"})
    assert open_source(folder).config()["quantization_config"] == {"quant_method": "modelopt"}


def test_the_parts_of_a_weight_may_lie_in_several_shards(folder):
    state = quantise(folder, FORMS["gptq"])
    file = folder / "model.safetensors"
    stored, where = load_file(file), {}
    file.unlink()
    for i in range(3):
        names = sorted(stored)[i::3]
        shard = f"model-0000{i + 1}-of-00003.safetensors"
        save_file({name: stored[name] for name in names}, folder / shard)
        where |= dict.fromkeys(names, shard)
    assert where[f"{UP}.qweight"] != where[f"{UP}.scales"]
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    source = open_source(folder)
    np.testing.assert_allclose(source.tensor(f"{UP}.weight"), state[f"{UP}.weight"], rtol=3e-7)
    (folder / shard).unlink()
    with pytest.raises(InvalidWeights, match=f"names the shard {shard}, which is missing"):
        open_source(folder)
