"""Pipelines: parts by coremltools' own hand and a detector field by field, against numpy."""

from _foreign import package, quiet
from _oracle import suppress
import coremltools as ct
from mlprogram import MLProgram, Pipeline, save
from mlprogram.cli import app
from mlprogram.compare.packages import compare_packages
import mlprogram.coreml
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.container import open_container
from mlprogram.package.files import proto
from mlprogram.run.pipeline import open_model
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

CHOICE = dict(iouThreshold=0.45, confidenceThreshold=0.25)


class Half(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.linear = torch.nn.Linear(*sizes)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Two packages, x -> h -> y, and the pipeline that coremltools makes of them."""
    folder, paths = tmp_path_factory.mktemp("halves"), []
    torch.manual_seed(0)
    for names, sizes in [(("x", "h"), (8, 64)), (("h", "y"), (64, 4))]:
        inputs = [ct.TensorType(name=names[0], shape=(2, sizes[0]))]
        outputs = [ct.TensorType(name=names[1])]
        path = folder / f"{names[1]}.mlpackage"
        example = (torch.rand(2, sizes[0]),)
        package(Half(sizes).eval(), path, example, inputs=inputs, outputs=outputs)
        paths.append(path)
    with quiet():
        models = [ct.models.MLModel(str(path), skip_model_load=True) for path in paths]
        ct.utils.make_pipeline(*models).save(str(folder / "both.mlpackage"))
    return *paths, folder / "both.mlpackage"


X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_pipeline_gives_what_its_parts_give(halves, precision):
    first, second, both = halves
    model = open_model(both, precision=precision)
    assert isinstance(model, Pipeline) and list(model.inputs) == ["x"] and len(model.parts) == 2
    between = MLProgram(first, precision=precision).predict({"x": X})["h"]
    wanted = MLProgram(second, precision=precision).predict({"h": between})
    found = model.predict([{"x": X}, {"x": X + 1}])
    assert list(found[0]) == ["y"] == list(model.outputs)
    np.testing.assert_array_equal(found[0]["y"], wanted["y"])
    assert not np.array_equal(found[1]["y"], wanted["y"])


def test_a_compiled_pipeline_gives_the_same(halves, tmp_path):
    save(halves[2], tmp_path / "both.mlmodelc")
    save(tmp_path / "both.mlmodelc", tmp_path / "again.mlpackage")
    wanted = open_model(halves[2]).predict({"x": X})["y"]
    for name in ("both.mlmodelc", "again.mlpackage"):
        np.testing.assert_array_equal(open_model(tmp_path / name).predict({"x": X})["y"], wanted)


def test_coremltools_predicts_with_it(halves):
    with mlprogram.coreml.enable():
        found = ct.models.MLModel(str(halves[2])).predict({"x": X})
    np.testing.assert_array_equal(found["y"], open_model(halves[2]).predict({"x": X})["y"])


def test_what_a_pipeline_is_not_given_right(halves):
    model = open_model(halves[2])
    with pytest.raises(InvalidInput, match="takes x; missing: x; unknown: z"):
        model.predict({"z": X})
    with pytest.raises(InvalidInput, match="has no functions"):
        open_model(halves[2], "main")
    with pytest.raises(InvalidPackage, match="open it with mlprogram.open,"):
        MLProgram(halves[2])


# --- detectors ------------------------------------------------------------------------------------


class Detector(torch.nn.Module):
    """As YOLO ends: a convolution over a grid, a box and class scores for every cell."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 7, 3, padding=1)

    def forward(self, image):
        found = self.conv(image * 4 - 2).flatten(2).transpose(1, 2)[0]  # (64, 7)
        boxes = found[:, :4].sigmoid() * 0.5 + 0.1
        return found[:, 4:].sigmoid(), boxes


def suppression(labels=("cat", "dog", "bird"), per_class=False, bounds=None):
    """The last part of a detector, by its fields."""
    spec = proto("Model_pb2").Model(specificationVersion=8)
    settings = spec.nonMaximumSuppression
    settings.pickTop.perClass = per_class
    settings.stringClassLabels.vector.extend(labels)
    for key, value in CHOICE.items():
        setattr(settings, key, value)
        setattr(settings, f"{key}InputFeatureName", key)
    for kind, width in (("confidence", len(labels)), ("coordinates", 4)):
        setattr(settings, f"{kind}InputFeatureName", f"raw_{kind}")
        setattr(settings, f"{kind}OutputFeatureName", kind)
        for features, name in (
            (spec.description.input, f"raw_{kind}"),
            (spec.description.output, kind),
        ):
            array = features.add(name=name).type.multiArrayType
            array.dataType = 65568
            low, high = bounds or (0, -1)
            array.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
            array.shapeRange.sizeRanges.add(lowerBound=width, upperBound=width)
    return spec


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    torch.manual_seed(3)
    package(
        Detector().eval(), folder / "raw.mlpackage", (torch.rand(1, 3, 8, 8),),
        inputs=[ct.ImageType(name="image", shape=(1, 3, 8, 8), scale=1 / 255)],
        outputs=[ct.TensorType(name="raw_confidence"), ct.TensorType(name="raw_coordinates")],
        compute_precision=ct.precision.FLOAT32,
    )  # fmt: skip
    return folder / "raw.mlpackage"


def with_suppression(path, target, last):
    """A package of the detector and the last part."""
    container = open_container(path)
    spec = proto("Model_pb2").Model(specificationVersion=9)
    spec.pipeline.models.add().CopyFrom(container.spec)
    spec.pipeline.models.add().CopyFrom(last)
    spec.description.input.extend(container.spec.description.input)
    for name in CHOICE:
        feature = spec.description.input.add(name=name)
        feature.type.isOptional = True
        feature.type.doubleType.SetInParent()
    spec.description.output.extend(last.description.output)
    save(type(container)(container.path, container.folder, container.base, spec), target)
    return target


IMAGE = np.random.default_rng(5).integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"iouThreshold": 0.2}, {"confidenceThreshold": np.float64(0.6)}]
)
def test_a_detector_keeps_what_the_definition_keeps(detector, tmp_path, per_class, given):
    last = suppression(per_class=per_class)
    model = open_model(with_suppression(detector, tmp_path / "d.mlpackage", last))
    raw = MLProgram(detector).predict({"image": IMAGE})
    boxes, scores = raw["raw_coordinates"], raw["raw_confidence"]
    iou, least = map(float, (CHOICE | given).values())
    wanted = suppress(boxes, scores, iou, least, len(boxes), per_class)
    found = model.predict({"image": IMAGE} | given)
    assert 1 < len(wanted) < len(boxes)
    np.testing.assert_array_equal(found["coordinates"], boxes[wanted])
    np.testing.assert_array_equal(found["confidence"], scores[wanted])


def test_nothing_found_and_a_fixed_number_of_rows(detector, tmp_path):
    model = open_model(with_suppression(detector, tmp_path / "d.mlpackage", suppression()))
    found = model.predict({"image": IMAGE, "confidenceThreshold": 1.5})
    assert found["coordinates"].shape == (0, 4) and found["confidence"].shape == (0, 3)
    fixed = suppression(bounds=(3, 3))
    model = open_model(with_suppression(detector, tmp_path / "e.mlpackage", fixed))
    assert model.predict({"image": IMAGE, "iouThreshold": 1.0})["coordinates"].all()
    found = model.predict({"image": IMAGE, "confidenceThreshold": 1.5})
    assert found["coordinates"].shape == (3, 4) and not found["confidence"].any()


@pytest.mark.parametrize("value", [-0.1, np.nan, [0.1, 0.2], "much"])
def test_a_threshold_that_is_none(detector, tmp_path, value):
    model = open_model(with_suppression(detector, tmp_path / "d.mlpackage", suppression()))
    with pytest.raises(InvalidInput, match="iouThreshold"):
        model.predict({"image": IMAGE, "iouThreshold": value})


# --- what is no ML Program ------------------------------------------------------------------------


def test_a_part_of_another_type_is_refused_by_name(detector, tmp_path):
    other = suppression()
    other.glmRegressor.SetInParent()
    path = with_suppression(detector, tmp_path / "d.mlpackage", other)
    with pytest.raises(InvalidPackage, match="part 1: holds a glmRegressor, not an ML Program"):
        open_model(path)
    lost = suppression()
    lost.nonMaximumSuppression.coordinatesInputFeatureName = "boxes"
    path = with_suppression(detector, tmp_path / "e.mlpackage", lost)
    with pytest.raises(InvalidPackage, match="part 1 takes boxes, which nothing gives"):
        open_model(path)


@pytest.mark.parametrize(
    "kind, match",
    [
        ("glmRegressor", "holds a glmRegressor, not an ML Program; only ML Programs run here"),
        ("neuralNetwork", 'holds a neuralNetwork, .* convert its source again, .*"mlprogram"'),
        ("pipelineClassifier", "holds a pipelineClassifier, not an ML Program"),
    ],
)
def test_a_single_file_of_another_type_is_refused_by_name(kind, match, tmp_path):
    spec = proto("Model_pb2").Model(specificationVersion=4)
    getattr(spec, kind).SetInParent()
    path = tmp_path / "m.mlmodel"
    path.write_bytes(spec.SerializeToString())
    with pytest.raises(InvalidPackage, match=match):
        open_model(path)
    with pytest.raises(RuntimeError, match=f"Error compiling model: .*{match}"):
        mlprogram.coreml.Proxy(str(path), "ALL", "", {})


def test_the_command_line_shows_and_runs_a_pipeline(detector, halves, tmp_path):
    path = str(with_suppression(detector, tmp_path / "d.mlpackage", suppression()))
    done = CliRunner().invoke(app, ["inspect", path])
    assert "part 0 (specification version" in done.output and "iouThreshold" in done.output
    done = CliRunner().invoke(app, ["run", path, "--out", str(tmp_path / "out.npz")])
    assert done.exit_code == 0, done.output
    assert "run of pipeline, computed as declared, on" in done.output
    assert np.load(tmp_path / "out.npz")["coordinates"].shape[1:] == (4,)
    with pytest.raises(InvalidInput, match="a pipeline is several"):
        compare_packages(halves[2])
