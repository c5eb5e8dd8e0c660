"""Assets of Core AI: what they compute, hold and weigh, and what is refused."""

import tempfile

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.optimize import coreml as cto
from mlprogram import coreai
from mlprogram.cli import app
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput, InvalidPackage
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("coreai", reason="coreai-core is not installed")


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_zeros_are_carried_as_a_mask(tmp_path):
    """Three of four weights are zero: the asset has a bit for each, and the fourth."""
    weight = np.zeros((64, 64), np.float32)
    weight[:, ::4] = np.linspace(-1, 1, 1024).reshape(64, 16)
    path = program(tmp_path, lambda x: mb.linear(x=x, weight=weight), (2, 64))
    sparse = cto.prune_weights(
        ct.models.MLModel(str(path), skip_model_load=True),
        cto.OptimizationConfig(
            cto.OpMagnitudePrunerConfig(target_sparsity=0.7, weight_threshold=0)
        ),
    )
    sparse.save(str(tmp_path / "sparse.mlpackage"))
    sizes = [
        size(coreai.save_asset(tmp_path / f"{name}.mlpackage", tmp_path / f"{name}.aimodel"))
        for name in ("made", "sparse")
    ]
    assert sizes[0] - sizes[1] > 0.6 * 2 * weight.size
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    function = CoreAIBackend("fp32").load(tmp_path / "sparse.mlpackage", "main")
    (found,) = function.predict({"x": x}).values()
    assert np.abs(found - x @ weight.T.astype(np.float16).astype(np.float32)).max() < 1e-5


def program(tmp_path, operation, shape=(1, 3, 4, 4)):
    @mb.program(input_specs=[mb.TensorSpec(shape=shape)], opset_version=ct.target.iOS17)
    def made(x):
        return operation(x)

    path = tmp_path / "made.mlpackage"
    ct.convert(made, minimum_deployment_target=ct.target.iOS17).save(str(path))
    return path


def test_an_op_without_a_counterpart_is_named_and_nothing_is_written(tmp_path):
    path = program(tmp_path, lambda x: mb.non_zero(x=x, name="places"))
    assert coreai.missing_ops(path) == ["non_zero ('places', function 'main')"]
    with pytest.raises(InvalidInput, match="no counterpart for non_zero .*; write the program"):
        coreai.save_asset(path, tmp_path / "made.aimodel")
    assert [file.name for file in tmp_path.iterdir()] == ["made.mlpackage"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_program_of_coremltools_casts_its_input_which_is_single_already(precision, tmp_path):
    path = program(tmp_path, lambda x: mb.relu(x=x, name="y"))
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)
    (found,) = CoreAIBackend(precision).load(path, "main").predict({"x": x}).values()
    assert np.abs(found - np.maximum(x, 0)).max() <= (0 if precision == "fp32" else 5e-4)


def test_what_was_compiled_is_gone_before_the_first_call(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = program(tmp_path, lambda x: mb.relu(x=x))
    function = CoreAIBackend("fp32").load(path, "main")
    assert not [*tmp_path.glob("*.aimodelx")]
    (found,) = function.predict({"x": np.ones((1, 3, 4, 4), np.float32)}).values()
    assert (found == 1).all()


def test_an_asset_that_could_not_be_written_is_no_asset(tmp_path, monkeypatch):
    path = program(tmp_path, lambda x: mb.relu(x=x))
    with monkeypatch.context() as full:
        full.setattr("mlprogram.coreai.run.save_asset", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            CoreAIBackend("fp32").load(path, "main")
    assert CoreAIBackend("fp32").load(path, "main").predict({"x": np.ones((1, 3, 4, 4))})


@pytest.mark.parametrize("name", ["made.mlmodel", "there.aimodel"])
def test_a_target_that_is_no_place_for_an_asset(name, tmp_path):
    path = program(tmp_path, lambda x: mb.relu(x=x))
    (tmp_path / "there.aimodel").mkdir()
    with pytest.raises(InvalidInput, match="is named .aimodel|exists already"):
        coreai.save_asset(path, tmp_path / name)


def test_a_damaged_package_is_the_readers_error(tmp_path):
    path = program(tmp_path, lambda x: mb.relu(x=x))
    next(path.rglob("*.mlmodel")).write_bytes(b"no program")
    with pytest.raises(InvalidPackage, match="damaged"):
        coreai.save_asset(path, tmp_path / "made.aimodel")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["save", "p.aimodel", "p.mlpackage"], "an asset of Core AI, not a package"),
        (["inspect", "p.aimodel"], "an asset of Core AI, not a package"),
        (["place", "p.aimodel"], "an asset of Core AI, not a package"),
        (["save", "made.mlpackage", "p.foo"], "must end in .mlpackage, .mlmodelc or .aimodel"),
    ],
)
def test_an_asset_where_a_package_or_a_model_belongs(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    coreai.save_asset(program(tmp_path, lambda x: mb.relu(x=x)), tmp_path / "p.aimodel")
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code and said in f"{run.output}{run.exception}"


def test_save_writes_assets_from_the_command_line(tmp_path):
    path = program(tmp_path, lambda x: mb.relu(x=x))
    run = CliRunner().invoke(app, ["save", str(path), str(tmp_path / "made.aimodel")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "made.aimodel" / "main.mlirb").stat().st_size > 100
