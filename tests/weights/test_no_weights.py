"""What is no weights, or holds numbers that no bundle can: what is said of it."""

from pathlib import Path
import re
import shutil

from _command import refused
import ane_book
from ane_book.errors import InvalidWeights
import pytest
from safetensors.torch import load_file, save_file
import torch

OTHERS = {
    "pytorch_model.bin": "model: config.json is there, but no .safetensors file; pytorch_model.bin "
    "is pickled, .*save_pretrained",
    "model/pytorch_model.bin": "pytorch_model.bin: pickled, .* writes safetensors",
    "model/model.pt2": "model.pt2: a program of torch.export; `coremltools.convert`.*"
    "ane-book diff PACKAGE --source FILE.pt2`",
    "model/config.json": "config.json: names no weights; give its folder",
}


@pytest.mark.parametrize(
    ("name", "command"),
    [("pytorch_model.bin", "convert")]  # a plan needs its config.json alone
    + [(name, command) for name in OTHERS if "/" in name for command in ("convert", "plan")],
)
def test_what_holds_no_weights_is_told_with_the_remedy(name, command, tiny, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tiny("llama")[1] / "config.json", folder)
    if not name.endswith("config.json"):
        torch.save({"x": torch.ones(2)}, folder / Path(name).name)
    given = tmp_path / name if "/" in name else folder
    said = refused(command, given)
    assert re.search(OTHERS[name], said), said


@pytest.mark.parametrize(
    ("tensor", "values", "told"),
    [
        ("model.norm.weight", [float("nan")], "1 NaN of 64 values; get the file again"),
        ("model.norm.weight", [1e6, -1e6], "2 beyond fp16's 65,504 of 64 values; no bundle can"),
        ("lm_head.weight", [float("nan"), float("inf")], "1 NaN and 1 beyond fp16's 65,504 of "),
        ("model.embed_tokens.weight", [float("nan")], "1 NaN of "),
    ],
)
def test_numbers_that_fp16_has_not_are_counted_and_their_file_named(
    tensor, values, told, tiny, tmp_path
):
    folder = shutil.copytree(tiny("llama")[1], tmp_path / "weights")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    flat = tensors[tensor].reshape(-1)
    flat[: len(values)] = torch.tensor(values)
    save_file(tensors | {tensor: flat.reshape(tensors[tensor].shape)}, file, {"format": "pt"})
    out = tmp_path / "bundle"
    with pytest.raises(InvalidWeights) as raised:
        ane_book.convert(str(folder), out=out, context=32, prefill=8)
    said = str(raised.value)
    assert said.startswith(f"{file}: tensor {tensor}: {told}")
    partial = tmp_path / "bundle.partial"
    assert partial.is_dir() == (str(partial) in said)


def test_the_name_of_a_package_is_no_bundles(tiny, tmp_path):
    for name in ("x.mlpackage", "x.mlmodelc", "x.aimodel"):
        said = refused("convert", tiny("llama")[1], "--out", tmp_path / name)
        assert f"{name} names one program, and a bundle is a folder of several; leave" in said
        assert "`mlprogram convert`" in said
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_not_there_is_told_before_anything_is_looked_at(tiny_bundle, tmp_path):
    bundle = tiny_bundle("llama")[1].path
    said = refused("check", bundle, "--parity", "--source", tmp_path / "nosuch")
    assert said.endswith("nosuch: there is no such file or folder")
