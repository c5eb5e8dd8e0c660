"""Assets of Core AI: what they compute, hold and weigh, what check sees, what is refused."""

import tempfile

from _foreign import build
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.optimize import coreml as cto
from mlprogram import MLProgram, coreai
from mlprogram.ane import laws
from mlprogram.cli import app
from mlprogram.coreai import bridge
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package import asset
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("coreai", reason="coreai-core is not installed")


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def program(tmp_path, operation, shape=(1, 3, 4, 4), target=ct.target.iOS17):
    return build(tmp_path / "made.mlpackage", (shape, types.fp32), opset=target)(operation)


def saved(tmp_path, operation, shape):
    """The program as an asset, beside the package."""
    path = program(tmp_path, operation, shape, ct.target.iOS18)
    return coreai.save_asset(path, path.with_suffix(".aimodel"))


def test_zeros_are_carried_as_a_mask(tmp_path):
    """Three of four weights are zero: the asset has a bit for each, and the fourth."""
    weight = np.zeros((64, 64), np.float32)
    weight[:, ::4] = np.linspace(-1, 1, 1024).reshape(64, 16)
    path = program(tmp_path, lambda x: mb.linear(x=x, weight=weight), (2, 64))
    how = cto.OpMagnitudePrunerConfig(target_sparsity=0.7, weight_threshold=0)
    model = ct.models.MLModel(str(path), skip_model_load=True)
    sparse = cto.prune_weights(model, cto.OptimizationConfig(how))
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


@pytest.fixture
def head(tmp_path):
    """An asset of one product, which is larger than what is cut off of it below."""
    weight = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    return saved(tmp_path, lambda x: mb.linear(x=x, weight=weight), (1, 64))


def test_a_cast_to_integers_and_back_keeps_its_cut(tmp_path):
    """Which Core AI's passes take for nothing (coreai-torch #9)."""
    x = np.array([[0.3, 1.7, -0.4, -1.6, 2, -3]], np.float32)
    package = program(
        tmp_path, lambda x: mb.cast(x=mb.cast(x=x, dtype="int32"), dtype="fp32"), (1, 6)
    )
    (there,) = CoreAIBackend().load(package, "main").predict({"x": x}).values()
    (here,) = MLProgram(package).predict({"x": x}).values()
    assert there.tolist() == here.tolist() == np.trunc(x).tolist()


def scaled(x):
    data = np.ones((8, 64), np.int8)
    weight = mb.constexpr_blockwise_shift_scale(data=data, scale=np.ones((8, 2), np.float16))
    return mb.linear(x=mb.cast(x=x, dtype="fp16"), weight=weight)


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
    report = laws.check(saved(tmp_path, operation, (1, 64)))
    assert [(one.rule.id, one.seen) for one in report.findings] == ([(rule, seen)] if rule else [])
    if rule:
        assert report.findings[0].places[0].function == "main"


@pytest.mark.parametrize("shape", [(1, 2, 1024, 16), (1, 2, 2048, 16), (1, 32, 1, 2048)])
def test_check_sees_long_caches_in_both_forms(shape, tmp_path):
    @build(tmp_path / "made.mlpackage", (shape, types.fp16), states=[shape])
    def path(x, cache):
        mb.coreml_update_state(state=cache, value=x)
        return mb.add(x=mb.read_state(input=cache), y=x)

    report = laws.check(coreai.save_asset(path, path.with_suffix(".aimodel")))
    found = {one.rule.id: one.seen for one in report.findings}
    assert found == ({"asset-cache": "a state of 2,048 slots"} if 2048 in shape else {})


def test_check_refuses_places_of_the_first_beta_without_reading_them(head):
    """By the name of the dialect: an asset of coreai-torch 0.4.0 has it, none of later ones."""
    assert not asset.old_locations(head)
    with (head / "main.mlirb").open("ab") as file:
        file.write(asset.OLD_LOCATIONS)
    program = head / "main.mlirb"
    program.with_name("main.hash").write_bytes(bytes.fromhex(asset.sha256(program)))
    report = laws.check(head)
    assert [one.rule.id for one in report.findings] == ["asset-locations"]
    assert report.fails("error")


def test_an_asset_is_not_written_by_a_beta_whose_assets_are_refused(head, monkeypatch):
    monkeypatch.setattr(bridge, "version", lambda name: "1.0.0b1")
    with pytest.raises(InvalidInput, match="1.0.0b1 writes no asset here"):
        coreai.save_asset(head.with_suffix(".mlpackage"), head.with_name("new.aimodel"))
