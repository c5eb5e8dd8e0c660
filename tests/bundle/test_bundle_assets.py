"""A bundle's assets of Core AI on disk: damaged, swapped, moved."""

from importlib.util import find_spec
from pathlib import Path
import shutil

from _tiny import prompt
from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level
from ane_book.conversion.assets import add_assets
from ane_book.errors import AneBookError, InvalidBundle, InvalidPackage
from ane_book.runtime import Session
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.package import asset
import numpy as np
import pytest

needs = pytest.mark.skipif(find_spec("coreai") is None, reason="coreai-core is not installed")
ASSET, OTHER = "head.aimodel", "layers_00-03.aimodel"
HIDDEN = np.linspace(-1, 1, 64, dtype=np.float16).reshape(1, 64, 1, 1)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def sound(tiny_bundle, tmp_path_factory):
    """A bundle with assets, and the logits of its head."""
    _, made = tiny_bundle("llama")
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    shutil.copytree(made.path, folder)
    add_assets(Bundle.open(folder))
    return folder, logits(folder)


def logits(folder: Path) -> np.ndarray:
    backend = CoreAIBackend()
    try:
        (found,) = (
            backend.load(folder / "head.mlpackage", "decode").predict({"hidden": HIDDEN}).values()
        )
    finally:
        backend.close()
    return found


def flip(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def swap(folder: Path) -> None:
    (folder / ASSET).rename(folder / "aside")
    (folder / OTHER).rename(folder / ASSET)
    (folder / "aside").rename(folder / OTHER)


DAMAGES = {
    "program": lambda folder: flip(folder, f"{ASSET}/main.mlirb"),
    "hash": lambda folder: flip(folder, f"{ASSET}/main.hash"),
    "no hash": lambda folder: (folder / ASSET / "main.hash").unlink(),
    "metadata": lambda folder: (folder / ASSET / "metadata.json").write_text("[]"),
    "version": lambda f: (f / ASSET / "metadata.json").write_text('{"assetVersion": "3.0"}'),
    "swapped": swap,
    "no folder": lambda folder: shutil.rmtree(folder / ASSET),
    "package": lambda folder: flip(folder, next((folder / "head.mlpackage").rglob("weight.bin"))),
}


@needs
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_asset_is_an_error_that_helps(damage, sound, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(sound[0], folder)
    DAMAGES[damage](folder)
    with pytest.raises(AneBookError, match="delete it, and write it anew|convert|git lfs") as told:
        Bundle.open(folder)
        logits(folder)
    assert str(folder) in str(told.value)


@needs
def test_the_runtime_itself_takes_a_changed_weight_for_a_sound_one(sound, tmp_path):
    """Why files are compared here: with its hash made anew, nothing would tell."""
    folder, want = sound
    shutil.copytree(folder, tmp_path / "bundle")
    program = tmp_path / "bundle" / ASSET / "main.mlirb"
    content = bytearray(program.read_bytes())
    content[-2000] ^= 64
    program.write_bytes(content)
    with pytest.raises(InvalidPackage, match="damaged, or not the one of main.hash"):
        logits(tmp_path / "bundle")
    program.with_name("main.hash").write_bytes(bytes.fromhex(asset.sha256(program)))
    with pytest.raises(InvalidBundle, match="not as it was written"):
        Bundle.open(tmp_path / "bundle").verify()
    assert not np.array_equal(logits(tmp_path / "bundle"), want)


@needs
def test_a_bundle_that_was_moved_runs_and_its_manifest_covers_its_assets(sound, tmp_path):
    folder, _ = sound
    moved = tmp_path / "elsewhere" / "bundle"
    shutil.copytree(folder, moved)
    bundle = Bundle.open(moved)
    bundle.verify()
    assert {f"{ASSET}/main.mlirb", f"{ASSET}/main.hash"} <= bundle.manifest.sha256.keys()
    here, there = (Session(moved, "fp16", backend) for backend in ("mil", "coreai"))
    found = [s.generate(prompt(11), max_tokens=8).token_ids for s in (here, there)]
    assert found[0] == found[1]
    assert not (tmp_path / "cache").exists(), "the assets beside the packages were not taken"


@needs
def test_evidence_outlasts_the_assets(tiny_bundle, tmp_path):
    _, made = tiny_bundle("llama")
    shutil.copytree(made.path, tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    level = Level(status="passed", reason="it was", tools={"x": "1"}, date="2026-11-26")
    bundle.record("L3", level)
    add_assets(bundle)
    assert Bundle.open(bundle.path).evidence.levels["L3"] == level
    add_assets(Bundle.open(bundle.path))  # which finds them there
    Bundle.open(bundle.path).verify()
