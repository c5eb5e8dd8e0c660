"""Assets of Core AI on disk: what is computed, what check sees, and what is refused."""

from pathlib import Path

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, coreai
from mlprogram.ane import laws
from mlprogram.coreai import bridge
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package import asset
import numpy as np
import pytest

pytest.importorskip("coreai", reason="coreai-core is not installed")


def saved(tmp_path: Path, inputs: dict, operation) -> Path:
    """A program as a package and, beside it, as an asset."""
    specs = [mb.TensorSpec(shape) for shape in inputs.values()]

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def made(x):
        return operation(x)

    path = tmp_path / "made.mlpackage"
    ct.convert(made, minimum_deployment_target=ct.target.iOS18).save(str(path))
    return coreai.save_asset(path, path.with_suffix(".aimodel"))


@pytest.fixture
def head(tmp_path):
    """An asset of one product, which is larger than what is cut off of it below."""
    weight = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    return saved(tmp_path, {"x": (1, 64)}, lambda x: mb.linear(x=x, weight=weight))


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


def test_what_ends_the_reading_process_does_not_end_this_one(head):
    program = head / "main.mlirb"
    program.write_bytes(program.read_bytes()[:5000])
    program.with_name("main.hash").write_bytes(bytes.fromhex(asset.sha256(program)))
    with pytest.raises(InvalidPackage, match="coreai-core cannot read the program"):
        laws.check(head)


def test_an_asset_is_not_written_by_a_beta_whose_assets_are_refused(head, monkeypatch):
    monkeypatch.setattr(bridge, "version", lambda name: "1.0.0b1")
    with pytest.raises(InvalidInput, match="1.0.0b1 writes no asset here"):
        coreai.save_asset(head.with_suffix(".mlpackage"), head.with_name("new.aimodel"))
