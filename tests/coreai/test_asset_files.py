"""Assets of Core AI on disk: damaged, swapped, moved, of other versions, and what check sees."""

from importlib.util import find_spec
from pathlib import Path
from random import Random
import re
import shutil

from _asset_damage import ASSET, HARMLESS, KINDS
from _tiny import prompt
from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level
from ane_book.conversion.assets import add_assets
from ane_book.errors import AneBookError, InvalidBundle, InvalidInput, InvalidPackage
from ane_book.runtime import Session
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, coreai
from mlprogram.ane import laws
from mlprogram.coreai import bridge
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.package import asset
import numpy as np
import pytest

needs = pytest.mark.skipif(find_spec("coreai") is None, reason="coreai-core is not installed")
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
        (found,) = backend.load(folder / "head.mlpackage", "decode").predict(
            {"hidden": HIDDEN}
        ).values()
    finally:
        backend.close()
    return found


def held(sound, target: Path, kind: str, number: int) -> None:
    """Damage a copy in one way: opening it is one error that helps, or the numbers are the same."""
    folder, want = sound
    shutil.copytree(folder, target)
    KINDS[kind](target, Random(number))
    try:
        Bundle.open(target)
        found = logits(target)
    except AneBookError as error:
        said = str(error)
        assert str(target) in said, (kind, number, said)
        assert re.search("delete it, and write it anew|convert|git lfs", said), (kind, number, said)
    else:
        assert kind in HARMLESS and np.array_equal(found, want), (kind, number)
    shutil.rmtree(target)


@needs
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_asset_is_an_error_that_helps(kind, sound, tmp_path):
    held(sound, tmp_path / "bundle", kind, 0)


@needs
@pytest.mark.long
def test_three_hundred_damaged_assets_and_manifests(sound, tmp_path):
    kinds = sorted(KINDS)
    for number in range(300):
        held(sound, tmp_path / "bundle", kinds[number % len(kinds)], number)


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


def saved(tmp_path: Path, inputs: dict, operation) -> Path:
    """A program as a package and, beside it, as an asset."""
    specs = [mb.TensorSpec(shape) for shape in inputs.values()]

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def made(x):
        return operation(x)

    path = tmp_path / "made.mlpackage"
    ct.convert(made, minimum_deployment_target=ct.target.iOS18).save(str(path))
    return coreai.save_asset(path, path.with_suffix(".aimodel"))


@needs
def test_a_cast_to_integers_and_back_keeps_its_cut(tmp_path):
    """Which Core AI's passes take for nothing (coreai-torch #9)."""
    made = saved(
        tmp_path, {"x": (1, 6)}, lambda x: mb.cast(x=mb.cast(x=x, dtype="int32"), dtype="fp32")
    )
    x = np.array([[0.3, 1.7, -0.4, -1.6, 2, -3]], np.float32)
    package = made.with_suffix(".mlpackage")
    (there,) = CoreAIBackend().load(package, "main").predict({"x": x}).values()
    (here,) = MLProgram(package).predict({"x": x}).values()
    assert there.tolist() == here.tolist() == np.trunc(x).tolist()


def scaled(x):
    data = np.ones((8, 64), np.int8)
    weight = mb.constexpr_blockwise_shift_scale(data=data, scale=np.ones((8, 2), np.float16))
    return mb.linear(x=mb.cast(x=x, dtype="fp16"), weight=weight)


@needs
@pytest.mark.parametrize(
    "operation, rule, seen",
    [
        (lambda x: mb.floor(x=x), "asset-rounds", "broadcasting_floor_divide by 1"),
        (lambda x: mb.reduce_argmax(x=x, axis=1), "asset-argmax", "argmax of fp16"),
        (scaled, "scale-per-block", "scales [8, 2] for tensor<8x64xsi8>"),
        (lambda x: mb.floor_div(x=x, y=np.float32(2)), None, None),
    ],
)
def test_check_names_the_op_and_the_claim(operation, rule, seen, tmp_path):
    report = laws.check(saved(tmp_path, {"x": (1, 64)}, operation))
    assert [(one.rule.id, one.seen) for one in report.findings] == ([(rule, seen)] if rule else [])
    if rule:
        assert report.findings[0].places[0].function == "main"


@needs
@pytest.mark.parametrize("shape", [(1, 2, 1024, 16), (1, 2, 2048, 16), (1, 32, 1, 2048)])
def test_check_sees_long_caches_in_both_forms(shape, tmp_path):
    @mb.program(
        input_specs=[mb.TensorSpec(shape, types.fp16), mb.StateTensorSpec(shape, types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def made(x, cache):
        mb.coreml_update_state(state=cache, value=x)
        return mb.add(x=mb.read_state(input=cache), y=x)

    path = tmp_path / "made.mlpackage"
    ct.convert(made, minimum_deployment_target=ct.target.iOS18).save(str(path))
    report = laws.check(coreai.save_asset(path, path.with_suffix(".aimodel")))
    found = {one.rule.id: one.seen for one in report.findings}
    assert found == ({"asset-cache": "a state of 2,048 slots"} if 2048 in shape else {})


@needs
def test_check_refuses_places_of_the_first_beta_without_reading_them(sound, tmp_path):
    """By the name of the dialect: an asset of coreai-torch 0.4.0 has it, none of later ones."""
    shutil.copytree(sound[0] / ASSET, tmp_path / ASSET)
    assert not asset.old_locations(tmp_path / ASSET)
    with (tmp_path / ASSET / "main.mlirb").open("ab") as file:
        file.write(asset.OLD_LOCATIONS)
    program = tmp_path / ASSET / "main.mlirb"
    program.with_name("main.hash").write_bytes(bytes.fromhex(asset.sha256(program)))
    report = laws.check(tmp_path / ASSET)
    assert [one.rule.id for one in report.findings] == ["asset-locations"]
    assert report.fails("error")


@needs
def test_what_ends_the_reading_process_does_not_end_this_one(sound, tmp_path):
    shutil.copytree(sound[0] / ASSET, tmp_path / ASSET)
    program = tmp_path / ASSET / "main.mlirb"
    program.write_bytes(program.read_bytes()[:5000])
    program.with_name("main.hash").write_bytes(bytes.fromhex(asset.sha256(program)))
    with pytest.raises(InvalidPackage, match="coreai-core cannot read the program"):
        laws.check(tmp_path / ASSET)


@needs
def test_an_asset_is_not_written_by_a_beta_whose_assets_are_refused(sound, tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "version", lambda name: "1.0.0b1")
    with pytest.raises(InvalidInput, match="1.0.0b1 writes no asset here"):
        coreai.save_asset(sound[0] / "head.mlpackage", tmp_path / "head.aimodel")


def test_without_the_extra_it_says_what_to_install(tiny_bundle, monkeypatch):
    monkeypatch.setattr("mlprogram.coreai.values.find_spec", lambda name: None)
    _, bundle = tiny_bundle("llama")
    with pytest.raises(InvalidInput, match=r'".\[coreai\]"`; coreai-core is missing'):
        Session(bundle, "fp16", "coreai")
