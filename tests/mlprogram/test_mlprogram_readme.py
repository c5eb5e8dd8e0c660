"""The README of mlprogram: its lines run, its job is one, its commands exist."""

from pathlib import Path
import re

from _command import mlprogram, refused
import coremltools as ct
import numpy as np
import pytest
import torch
from torch import nn
import yaml

README = (Path(__file__).parents[2] / "mlprogram" / "README.md").read_text()
X = np.array([[1, -2, 3]], np.float16)


class Sum(nn.Module):
    """Adds up what it was given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 1.0


def save(module: nn.Module, path: Path, **more) -> None:
    model = ct.convert(
        torch.jit.trace(module.eval(), torch.zeros(1, 3)),
        inputs=[ct.TensorType("x", (1, 3), dtype=np.float16)],
        outputs=[ct.TensorType("y", dtype=np.float16)],
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
        **more,
    )
    model.save(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("readme")
    save(nn.ReLU(), made / "model.mlpackage")
    total = ct.StateType(ct.TensorType(shape=(1, 3), dtype=np.float16), "total")
    save(Sum(), made / "decoder.mlpackage", states=[total])
    save(nn.Tanh(), made / "other.mlpackage")
    return made


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_its_lines_of_python_run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names = {"x": X, "torch_module": nn.ReLU().eval()}
    exec(blocks("python")[0], names)
    assert names["outputs"]["y"].tolist() == [[1, 0, 3]]
    assert names["state"].read_state("total").tolist() == X.tolist()
    assert "outputs equal within the tolerance" in capsys.readouterr().out


def test_its_commands_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    lines = [line.split("#")[0].split() for line in blocks("bash")[0].splitlines() if line]
    codes = {}
    for program, *words in lines:
        assert program == "mlprogram"
        done = mlprogram(*words)
        codes[words[0]] = done.returncode
        assert done.stdout and not done.stderr, done.stderr
    assert codes == {"inspect": 0, "run": 0, "diff": 1, "check": 0, "faults": 0}


def test_its_job_is_one():
    job = yaml.safe_load(blocks("yaml")[0])["jobs"]["model"]
    said = job["steps"][-1]["run"]
    assert "#subdirectory=mlprogram" in said and "pytest -p mlprogram" in said


@pytest.mark.parametrize("words", ["inspect none.mlpackage", "run none.mlpackage", "diff a b"])
def test_what_cannot_be_run_is_one_line_and_code_2(words):
    assert "no such package" in refused(*words.split(), by=mlprogram)
