"""A clone without its large files has pointers of Git LFS in their place: called what they are."""

from pathlib import Path
import shutil

from _command import refused
from ane_book import MLProgram
from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, InvalidPackage, InvalidWeights
from ane_book.weights import open_source
from mlprogram import save
import pytest

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 81379\n"


def says(file: Path) -> str:
    """What every error about such a file has."""
    return rf"{file.name}: a pointer of Git LFS .* `git lfs pull`"


@pytest.fixture
def bundle(tiny_bundle, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_bundle("llama")[1].path, tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("mlpackage", name) for name in ("Manifest.json", "model.mlmodel", "weight.bin")),
        *(("mlmodelc", name) for name in ("coremldata.bin", "model.mil", "weight.bin")),
    ],
)
def test_a_package_and_a_compiled_model(bundle, tmp_path, form, name):
    (package,) = bundle.glob("layers_*.mlpackage")
    if form == "mlmodelc":
        package, made = tmp_path / "layers.mlmodelc", package
        save(made, package)
    (file,) = package.rglob(name)
    file.write_text(POINTER)
    with pytest.raises(InvalidPackage, match=says(file)):
        MLProgram(package)


def test_a_bundle(bundle):
    """Its remedy is not to convert the model again."""
    file = next(bundle.rglob("weight.bin"))
    file.write_text(POINTER)
    with pytest.raises(InvalidBundle, match=says(file)):
        Bundle.open(bundle)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_folder_of_weights(tiny, tmp_path, name):
    folder = Path(shutil.copytree(tiny("llama")[1], tmp_path / "m"))
    (folder / name).write_text(POINTER)
    with pytest.raises(InvalidWeights, match=says(folder / name)):
        open_source(folder).tokenizer()


def test_a_file_of_weights(tmp_path):
    (tmp_path / "m.gguf").write_text(POINTER)
    message = refused("convert", tmp_path / "m.gguf", "--out", tmp_path / "b")
    assert "m.gguf: a pointer of Git LFS" in message
