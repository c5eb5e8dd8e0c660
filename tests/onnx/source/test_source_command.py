"""`mlprogram diff PACKAGE --source`: exit codes, JSON, inputs, one clear error for what is bad."""

from functools import partial
import io
import json
import zipfile

import _command
from _command import mlprogram
from _sources import NETWORKS, export, faulty, made, package
from mlprogram.errors import InvalidInput
from mlprogram.onnx.source import compare_with_source
import numpy as np
import pytest
import torch

refused = partial(_command.refused, by=mlprogram)

FACTORY = """
import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 8)

    def forward(self, x):
        return torch.softmax(self.first(x), 1)


def make():
    return Network(), (torch.zeros(3, 6),)


def nothing():
    return 3
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A network's two sources, its package, and a package with a fault."""
    folder, inputs = tmp_path_factory.mktemp("files"), NETWORKS["recurrent"][1]
    for ending in (".pt2", ".onnx"):
        export(made("recurrent"), inputs, folder / f"source{ending}")
    package(made("recurrent"), inputs, folder / "sound.mlpackage", True)
    wrong = faulty("recurrent", lambda module: setattr(module, "axis", 1))
    package(wrong, inputs, folder / "wrong.mlpackage", True)
    return folder


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_exit_codes_and_what_is_said(files, ending):
    source = files / f"source{ending}"
    trust = ["--trust-source"] * (ending == ".pt2")
    sound = mlprogram("diff", files / "sound.mlpackage", "--source", source, *trust)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert "the package computes what its source computes" in sound.stdout
    wrong = mlprogram("diff", files / "wrong.mlpackage", "--source", source, *trust)
    assert wrong.returncode == 1
    lines = wrong.stdout.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("first apart: "))
    assert "oftmax" in lines[first]
    assert lines[first + 1].startswith("  MIL       softmax")
    assert any(line.startswith("  agreed") for line in lines)
    assert any(line.startswith("  cause     axis: ") for line in lines)


def test_as_json(files):
    done = mlprogram("diff", files / "wrong.mlpackage", "--source", files / "source.onnx", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 1 and facts["equal"] is False
    assert facts["first"]["node"]["op"] == "Softmax" and facts["first"]["kind"] == "axis"
    assert facts["first"]["mil"]["op"] == "softmax"
    assert facts["first"]["agreed"][0]["error"] < 1e-3
    assert facts["first"]["gap"]["error"] > 0.01


def test_a_factory(tmp_path):
    (tmp_path / "model.py").write_text(FACTORY)
    scope: dict = {"__name__": "model"}
    exec(FACTORY, scope)
    network, (x,) = scope["make"]()
    package(network.eval(), {"x": x}, tmp_path / "model.mlpackage", True)
    place = f"python:{tmp_path / 'model.py'}"
    done = mlprogram("diff", tmp_path / "model.mlpackage", "--source", f"{place}:make")
    assert done.returncode == 0, done.stdout + done.stderr
    said = refused("diff", tmp_path / "model.mlpackage", "--source", f"{place}:nothing")
    assert "has to return a module and its inputs" in said
    said = refused("diff", tmp_path / "model.mlpackage", "--source", f"{place}:none")
    assert "no attribute 'none'" in said


def test_a_pt2_that_nobody_trusts_runs_nothing(files, tmp_path):
    """https://docs.pytorch.org/docs/stable/export.html: `torch.export.load` uses pickle."""
    ran, pickled = tmp_path / "ran", io.BytesIO()
    torch.save(Payload(ran), pickled)
    with (
        zipfile.ZipFile(files / "source.pt2") as good,
        zipfile.ZipFile(tmp_path / "source.pt2", "w") as bad,
    ):
        for name in good.namelist():
            inputs = "sample_inputs" in name and name.endswith(".pt")
            bad.writestr(name, pickled.getvalue() if inputs else good.read(name))
    command = ["diff", files / "sound.mlpackage", "--source", tmp_path / "source.pt2"]
    assert "--trust-source" in refused(*command) and not ran.exists()
    with pytest.raises(InvalidInput, match="trust_source=True"):
        compare_with_source(files / "sound.mlpackage", str(tmp_path / "source.pt2"))
    assert not ran.exists()
    mlprogram(*command, "--trust-source")
    assert ran.exists()  # so the payload is one


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return type(self.file).touch, (self.file,)


def test_inputs_of_a_file(files, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.ones((1, 9, 6), np.float32))
    command = ["diff", files / "sound.mlpackage", "--source", files / "source.onnx"]
    done = mlprogram(*command, "--inputs", tmp_path / "in.npz")
    assert done.returncode == 0 and f"on       {tmp_path / 'in.npz'}" in done.stdout
    np.savez(tmp_path / "in.npz", y=np.ones((1, 9, 6), np.float32))
    assert "has no array 'x'; it has: y" in refused(*command, "--inputs", tmp_path / "in.npz")


def test_what_is_bad_gets_one_error(files, tmp_path):
    sound = files / "sound.mlpackage"
    assert "is not FILE.onnx, FILE.pt2" in refused("diff", sound, "--source", "model.h5")
    assert "no such file" in refused("diff", sound, "--source", tmp_path / "none.onnx")
    assert "no such file" in refused("diff", sound, "--source", tmp_path / "none.pt2")
    (tmp_path / "torn.pt2").write_bytes(b"PK")
    said = refused("diff", sound, "--source", tmp_path / "torn.pt2", "--trust-source")
    assert "not what torch.export.save writes" in said
    said = refused("diff", sound, sound, "--source", files / "source.onnx")
    assert "with --source or by --backend: name one" in said
    for option in (["--pixels", "unit"], ["--trust-source"]):
        assert "go with --source" in refused("diff", sound, *option)


def test_the_source_of_another_package(files, tmp_path):
    """Inputs or outputs that cannot be paired, by number or by shape."""
    sound = files / "sound.mlpackage"
    other = export(made("encoder"), NETWORKS["encoder"][1], tmp_path / "encoder.onnx")
    said = refused("diff", sound, "--source", other)
    assert "takes x, and its source ids, mask" in said and "is it the source" in said
    other = export(made("decoder"), NETWORKS["decoder"][1], tmp_path / "decoder.onnx")
    said = refused("diff", sound, "--source", other)
    assert "(1, 9, 6)" in said and "(1, 6, 16)" in said
