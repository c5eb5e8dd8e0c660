"""A folder of weights stands for its bundle in the cache, wherever a package is taken."""

import json
from pathlib import Path
import shutil

from _command import ane_book, refused
import ane_book as library
import pytest

COMMANDS = "inspect", "check", "place", "quality", "residency"
SIZES = {"context": 32, "prefill": 8}


@pytest.fixture
def weights(tiny, tmp_path, monkeypatch) -> Path:
    """A folder of weights, named as nothing else, and a cache of its own."""
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(tiny("llama")[1], tmp_path / "my-llama"))


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_bundle_it_is_refused_with_what_takes_it(weights, command):
    said = refused(command, weights)
    assert "holds weights, not a program; `ane-book plan" in said and "ane-book convert" in said


def test_the_bundle_that_was_used_last_is_taken(weights):
    plain = library.convert(str(weights), **SIZES)
    done = ane_book("inspect", weights, "--json")
    assert json.loads(done.stdout)["bundle"] == str(plain.path)
    assert done.stderr == f"{weights}: its bundle in the cache is {plain.path}\n"
    eight = library.convert(str(weights), quant="int8", **SIZES)
    library.load(eight.path)
    for command in COMMANDS:
        assert str(eight.path) in ane_book(command, weights).stderr, command
    placed = json.loads(ane_book("place", weights, "--json").stdout)
    assert len(placed) == len(json.loads(ane_book("place", eight.path, "--json").stdout)) > 1


def test_they_are_the_source_that_it_is_held_to(weights):
    """A quantised bundle's parity and quality need its weights, which were named already."""
    library.convert(str(weights), quant="int8", **SIZES)
    parity = json.loads(ane_book("check", weights, "--parity", "--json").stdout)["parity"]
    assert parity["passed"] and parity["source"] is True
    assert "not at hand" not in ane_book("quality", weights, "--tokens", "64").stdout


def test_other_weights_of_the_same_name_have_none(weights, tiny, tmp_path):
    library.convert(str(weights), **SIZES)
    other = shutil.copytree(tiny("qwen2")[1], tmp_path / "elsewhere" / weights.name)
    assert "holds weights" in refused("inspect", other)


def test_a_file_of_weights_is_called_by_its_folder(weights):
    bundle = library.convert(str(weights / "model.safetensors"), **SIZES)
    assert bundle.manifest.name == "my-llama"
    assert json.loads(ane_book("inspect", weights / "model.safetensors", "--json").stdout)
