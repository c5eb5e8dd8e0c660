"""The GitHub action's shell steps, run as a runner runs them, in a clean folder of packages.

Installing, and the steps that other actions are, need the network and GitHub: they are not run.
"""

import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

from _networks import save
from _plant import change_weight, flip
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import numpy as np
import onnx
from onnx import TensorProto, helper
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
INPUTS = {name: each["default"] for name, each in ACTION["inputs"].items()}

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="composite actions run bash")


def package(path: Path, weight: np.ndarray, dtype=types.fp16) -> None:
    """Two 1x1 convolutions over 1,024 positions."""

    def network(x):
        return mb.conv(x=mb.relu(x=mb.conv(x=x, weight=weight)), weight=weight)

    save(path, network, (1, 1024, 1, 1024), dtype=dtype)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose packages are sound, of broken numbers, and of a type that is not taken."""
    folder = tmp_path_factory.mktemp("repository")
    weight = np.random.default_rng(0).standard_normal((1024, 1024, 1, 1)).astype(np.float16) / 32
    broken = weight.copy()
    broken[3, 5] = np.nan
    package(folder / "models" / "sound.mlpackage", weight)
    package(folder / "models" / "broken.mlpackage", broken)
    package(folder / "models" / "off.mlpackage", weight.astype(np.float32), types.fp32)
    return folder


def run(step: str, folder: Path, **inputs) -> tuple[subprocess.CompletedProcess, dict[str, str]]:
    """A step in `folder` by GitHub's own call of bash, behind the one that looks for packages, and
    what it wrote to the runner's files."""
    if step != "Find":
        assert run("Find", folder, **inputs)[0].returncode == 0
    temporary = folder.parent / f"{folder.name}-runner"
    temporary.mkdir(exist_ok=True)
    files = {name: temporary / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    binaries = temporary / "bin"
    binaries.mkdir(exist_ok=True)
    command = binaries / "ane-book"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ane_book "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {name: str(path) for name, path in files.items()}
    environment |= {"RUNNER_TEMP": str(temporary), "GITHUB_ACTIONS": "true"}
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    given = INPUTS | {name.replace("_", "-"): value for name, value in inputs.items()}
    given["action_path"] = str(ROOT)
    for name, expression in STEPS[step].get("env", {}).items():
        environment[name] = given[re.sub(r"\W*(inputs\.|github\.)|\W*$", "", expression)]
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
    done = subprocess.run(
        bash, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done, {name: path.read_text() for name, path in files.items()}


def annotations(done: subprocess.CompletedProcess) -> list[str]:
    lines = done.stdout.splitlines()
    return [line.partition("::main")[0] for line in lines if line.startswith("::")]


def test_every_step_is_a_shell_of_its_own_and_takes_inputs_by_environment_alone():
    """An expression in a script would let a file's name write the script."""
    for name, step in STEPS.items():
        assert step["shell"] == "bash", name
        assert "${{" not in step["run"], name
    known = {f"${{{{ inputs.{name} }}}}" for name in INPUTS} | {"${{ github.action_path }}"}
    assert {value for step in STEPS.values() for value in step.get("env", {}).values()} <= known


def test_the_cache_is_found_again(repository):
    """By the key of what is installed, and where pip and the executor keep it."""
    (step,) = (step for step in ACTION["runs"]["steps"] if "cache" in step.get("uses", ""))
    _, files = run("Find", repository, path="models")
    found = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].splitlines())
    assert re.fullmatch("[0-9a-f]{40}", found["key"]) and Path(found["pip"]).is_absolute()
    for name in found:
        assert f"${{{{ steps.find.outputs.{name} }}}}" in str(step["with"])


def test_laws(repository):
    done, files = run("Laws", repository, path="models")
    assert done.returncode == 1
    assert annotations(done)[:2] == [
        "::error file=models/broken.mlpackage,title=non-finite (conflicting)",
        "::error file=models/off.mlpackage,title=fp32-ops (apple)",
    ]
    assert not any("sound" in line for line in annotations(done) if "error" in line)
    assert "holds infinity or NaN" in done.stdout
    sarif = Path(files["GITHUB_OUTPUT"].removeprefix("sarif=").strip())
    assert sarif.read_text().startswith("{")


def test_laws_of_no_package(repository):
    done, _ = run("Laws", repository, path="nothing")
    assert done.returncode == 2
    assert "::error title=ane-book check::nothing cannot be read" in done.stdout


def test_placement(repository):
    done, files = run("Placement", repository, path="models")
    assert done.returncode == 0 and not annotations(done)
    summary = files["GITHUB_STEP_SUMMARY"]
    assert summary.count("```") == 2 and summary.count("models/sound.mlpackage\n") == 1
    assert [name for name in ("broken", "off", "sound") if f"{name}.mlpackage" in summary] == [
        "broken", "off", "sound",
    ]  # fmt: skip


@pytest.mark.long
def test_source(tmp_path):
    """A package whose source lies beside it is held to it; another package has none."""
    from mlprogram.onnx.graph import convert_graph

    models = tmp_path / "repository" / "models"
    models.mkdir(parents=True)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5, 7]) for n in "xy")
    for name, axis in (("sound", 1), ("apart", 1), ("changed", 2)):
        nodes = [helper.make_node("Softmax", ["x"], ["y"], "weights", axis=axis)]
        graph = helper.make_graph(nodes, "graph", [x], [y])
        opset = [helper.make_opsetid("", 17)]
        path = models / f"{name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
        convert_graph(path, models / f"{name}.mlpackage")
    shutil.rmtree(models / "apart.mlpackage")
    shutil.move(models / "changed.mlpackage", models / "apart.mlpackage")
    shutil.copytree(models / "sound.mlpackage", models / "alone.mlpackage")
    done, _ = run("Source", tmp_path / "repository", path="models")
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert line.startswith(
        "::error file=models/apart.mlpackage,title=differs from models/apart.onnx::first apart: "
        "Softmax 'weights'%0A"
    )
    assert "cause     axis: " in line
    shutil.rmtree(models / "apart.mlpackage")
    assert run("Source", tmp_path / "repository", path="models")[0].returncode == 0


def test_difference(repository, tmp_path):
    """The numbers of one package change after a commit."""

    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words],
            cwd=folder, check=True, capture_output=True, text=True,
        )  # fmt: skip

    folder = Path(shutil.copytree(repository, tmp_path / "changed"))
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "before")
    sound = folder / "models" / "sound.mlpackage"
    shutil.rmtree(sound)
    weight = np.random.default_rng(1).standard_normal((1024, 1024, 1, 1)).astype(np.float16) / 32
    package(sound, weight)
    done, _ = run("Difference", folder, path="models", base="HEAD")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("::notice")]
    assert line.startswith("::notice file=models/sound.mlpackage,title=differs from before::")
    assert "::first apart: conv 'conv_0' (1, 1024, 1, 1024)%0A  error" in line


@pytest.fixture(scope="module")
def bundles(tiny_bundle, tmp_path_factory):
    """A folder with a sound bundle and one with a weight of another sign."""
    folder = tmp_path_factory.mktemp("bundles")
    _, made = tiny_bundle("llama", (("head_dim", 64),))
    for name in ("sound", "flipped"):
        shutil.copytree(made.path, folder / "models" / name)
    (layers,) = (folder / "models" / "flipped").glob("layers*.mlpackage")
    change_weight(layers, "out_weight_to_fp16", flip)
    return folder


def test_parity(bundles):
    """Nothing is written into the checkout."""
    files = [path for path in bundles.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    laws, _ = run("Laws", bundles, path=".")
    done, _ = run("Parity", bundles, path=".")
    assert done.returncode == 1, done.stderr
    assert {path: path.read_bytes() for path in bundles.rglob("*") if path.is_file()} == before
    lines = [line for line in done.stdout.splitlines() if "title=parity" in line]
    assert len(lines) == 1
    assert lines[0].startswith("::error file=models/flipped/layers_00-03.mlpackage,title=parity::")
    told, again = ({line.split("title=")[1].split("::")[0] for line in annotations(each)}
                   for each in (laws, done))  # fmt: skip
    assert "program-small (conflicting)" in told and "parity" in again
    assert told.isdisjoint(again)


def test_a_bundle_is_named_with_all_its_functions(bundles):
    """And a web page's manifest.json makes no bundle."""
    page = bundles / "models" / "page"
    page.mkdir()
    (page / "manifest.json").write_text("{}")
    done, files = run("Placement", bundles, path=".")
    shutil.rmtree(page)
    assert done.returncode == 0 and not annotations(done)
    summary = files["GITHUB_STEP_SUMMARY"]
    assert summary.count("models/sound\n") == summary.count("models/flipped\n") == 1
    (sound,) = re.findall(r"models/sound\n(.+?)\n\n", summary, re.DOTALL)
    assert {"head.mlpackage", "layers_00-03.mlpackage"} <= set(re.findall(r"\w\S+age", sound))
    assert "decode" in sound and "prefill" in sound
