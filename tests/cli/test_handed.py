"""The commands of `mlprogram` that `ane-book` has too: bundles, models' names, and weights.

What they do of a package is tested with mlprogram. What is no package is in `test_cli.py`, weights
among it.
"""

import json
import shutil

from _command import ane_book, refused
import pytest


def test_place_and_check_take_a_bundle(bundle):
    placed = json.loads(ane_book("place", bundle, "--json").stdout)
    assert {each["function"] for each in placed} == {"decode", "prefill"}
    assert "in 2 packages" in ane_book("check", bundle, "--github").stdout


@pytest.mark.parametrize(
    "command, evidence",
    [("check", "(apple: "), ("inspect", "\nops of prefill\n"), ("place", "\n  stands on ")],
)
def test_what_decides_takes_a_screen_and_why_has_the_evidence(bundle, command, evidence):
    short, whole = (ane_book(command, bundle, *more).stdout for more in ((), ("--why",)))
    assert short.count("\n") <= 37 and evidence not in short  # seven laws broken, and a fault
    assert evidence in whole and len(whole) > len(short)


@pytest.mark.parametrize("beside", [[], ["model.safetensors"]])
def test_of_a_folder_the_package_is_named_that_is_damaged(bundle, beside, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(bundle, folder)
    next((folder / "head.mlpackage").rglob("*.mlmodel")).write_bytes(b"no program")
    assert "head.mlpackage: the model file is damaged" in refused("place", folder)
    (folder / "manifest.json").unlink()
    for name in beside:
        (folder / name).touch()
    for command in ("place", "check"):
        assert "head.mlpackage: the model file is damaged" in refused(command, folder)


def test_explain_is_the_same():
    assert "compiler-failed" in ane_book("explain", "ANECCompile() FAILED").stdout


@pytest.mark.parametrize("words", [
    "diff", "diff --source model.onnx", "save x.mlmodelc",
])  # fmt: skip
def test_a_bundle_has_packages_of_which_one_is_named(bundle, words):
    name, *rest = words.split()
    assert "name one of them, such as" in refused(name, bundle, *rest)
