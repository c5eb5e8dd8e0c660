"""Packages without their weights, as a clone without Git LFS has them: what needs no number is
answered as with them, and what was not seen is said."""

import json
from pathlib import Path
import shutil

from _command import mlprogram
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, save
from mlprogram.ane import faults, laws
from mlprogram.ane.faults.fix import fix
from mlprogram.ane.placement import place
from mlprogram.contents import inspect_package
from mlprogram.errors import InvalidPackage
import numpy as np
import pytest

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 81379\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A product, a mask with an infinity, a gather along the last axis, a remainder."""

    @mb.program(
        input_specs=[mb.TensorSpec((1, 64), types.fp16), mb.TensorSpec((1, 64), types.int32)],
        opset_version=ct.target.iOS18,
    )
    def program(x, i):
        half, mask = np.full((64, 64), 0.5, np.float16), np.zeros((1, 64), np.float16)
        mask[0, 3] = np.inf
        y = mb.add(x=mb.linear(x=x, weight=half), y=mask)
        return mb.mul(x=y, y=mb.cast(x=mb.mod(x=i, y=np.int32(5)), dtype="fp16"))

    path = tmp_path_factory.mktemp("whole") / "m.mlpackage"
    made = ct.convert(
        program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
        pass_pipeline=ct.PassPipeline.EMPTY,
    )  # fmt: skip
    made.save(str(path))
    return path


@pytest.fixture(params=["missing", "pointer", "compiled"])
def bare(request, whole, tmp_path) -> Path:
    package = Path(shutil.copytree(whole, tmp_path / whole.name))
    if request.param == "compiled":
        save(package, tmp_path / "m.mlmodelc")
        package = tmp_path / "m.mlmodelc"
    (file,) = package.rglob("weight.bin")
    file.unlink()
    if request.param != "missing":
        file.write_text(POINTER)
    return package


def said(package: Path) -> str:
    compiled = "git lfs pull" in str(inspect_package(package)["absent"])
    return "git lfs pull" if compiled else "'weight.bin' is not in the package"


def test_laws_and_faults_of_shapes_are_found_and_those_of_numbers_are_said_to_be_missing(
    whole, bare
):
    rules = {**laws.load(), **faults.load()}
    before, after = laws.check(whole, rules), laws.check(bare, rules)
    found = {one.rule.id for one in after.findings}
    assert {one.rule.id for one in before.findings} - found == {"non-finite"}
    assert "mod-sign" in found and before.unseen == []
    assert len(after.unseen) == 1 and said(bare) in after.unseen[0]
    flat = " ".join(after.text().split())
    assert "not looked at, the numbers of weights: " in flat and said(bare) in flat
    assert any(said(bare) in line for line in after.annotations())
    assert after.to_json()["unseen"] == after.unseen


def test_placement_and_contents_are_those_of_the_whole_package(whole, bare):
    with_weights, without = place(whole).to_json(), place(bare).to_json()
    assert {**without, "package": ""} == {**with_weights, "package": ""}
    facts = [inspect_package(one) for one in (whole, bare)]
    assert facts[0]["weights"] == facts[1]["weights"] and facts[0]["absent"] == []


def test_what_needs_the_numbers_is_refused(bare, tmp_path):
    for call in (MLProgram, lambda package: fix(package, tmp_path / "out.mlpackage")):
        with pytest.raises(InvalidPackage, match=said(bare)):
            call(bare)


def test_the_commands_say_it(bare):
    done = mlprogram("check", bare, "--json", "--fail-on", "never")
    assert said(bare) in json.loads(done.stdout)["unseen"][0]
    assert mlprogram("place", bare).returncode == 0
    assert said(bare) in " ".join(mlprogram("inspect", bare).stdout.split())
    for command in ("faults", "check"):
        assert "not looked at" in mlprogram(command, bare).stdout


def test_a_damaged_weight_file_is_refused(whole, tmp_path):
    """What is there and wrong is no clone without its files."""
    package = Path(shutil.copytree(whole, tmp_path / whole.name))
    (package / WEIGHTS).write_bytes(b"short")
    with pytest.raises(InvalidPackage, match="too short for a weight file"):
        laws.check(package)
