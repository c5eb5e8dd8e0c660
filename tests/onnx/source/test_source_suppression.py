"""Detectors whose packages suppress boxes: before and after, and why the two part."""

from _foreign import IN_SINGLE, build
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.proto import Model_pb2
from mlprogram.onnx.source import compare_with_source
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
import pytest

N, C = 24, 3  # boxes, classes


def weights() -> dict[str, np.ndarray]:
    """Of a detector that is two products: x (1, 8) -> boxes (N, 4), centred, and scores (N, C)."""
    random = np.random.default_rng(6)
    centre = random.uniform(0, 1, (N, 4)) * [8, 8, 0, 0] + [0, 0, 3, 3]
    return {
        "to_boxes": random.normal(0, 0.2, (8, 4 * N)).astype(np.float32),
        "base": centre.astype(np.float32),
        "to_scores": random.normal(0, 0.5, (8, N * C)).astype(np.float32),
        "classes": np.where(np.eye(C)[np.arange(N) % C], 0.5, -9).astype(np.float32),
    }


def source(path, iou=0.5, least=0.3):
    """The detector in ONNX, with its suppression of centred boxes."""
    tensors = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    shapes = {"box_shape": [N, 4], "score_shape": [N, C], "one": [0]}
    tensors += [numpy_helper.from_array(np.array(s, np.int64), n) for n, s in shapes.items()]
    tensors.append(numpy_helper.from_array(np.array([50]), "most"))
    limits = {"iou": iou, "least": least}.items()
    tensors += [numpy_helper.from_array(np.array([v], np.float32), n) for n, v in limits]
    nodes = [
        helper.make_node("MatMul", ["x", "to_boxes"], ["offsets"], "offsets"),
        helper.make_node("Reshape", ["offsets", "box_shape"], ["moved"], "moved"),
        helper.make_node("Add", ["moved", "base"], ["boxes"], "boxes"),
        helper.make_node("MatMul", ["x", "to_scores"], ["logits"], "logits"),
        helper.make_node("Reshape", ["logits", "score_shape"], ["rows"], "rows"),
        helper.make_node("Add", ["rows", "classes"], ["sums"], "sums"),
        helper.make_node("Sigmoid", ["sums"], ["scores"], "scores"),
        helper.make_node("Unsqueeze", ["boxes", "one"], ["batch"], "batch"),
        helper.make_node("Transpose", ["scores"], ["by_class"], "by_class"),
        helper.make_node("Unsqueeze", ["by_class", "one"], ["batch_scores"], "batch_scores"),
        helper.make_node("NonMaxSuppression", ["batch", "batch_scores", "most", "iou", "least"],
                         ["kept"], "suppress", center_point_box=1),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, ["k", 3])
    graph = helper.make_graph(nodes, "detector", [x], [kept], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def detector(change: str = ""):
    """The same as an ML Program; `change` says what is wrong with it."""
    held = weights()

    @mb.program(input_specs=[mb.TensorSpec((1, 8))], opset_version=ct.target.iOS17)
    def program(x):
        boxes = mb.reshape(x=mb.matmul(x=x, y=held["to_boxes"]), shape=[N, 4])
        boxes = mb.add(x=boxes, y=held["base"])
        if change == "corners":
            half = mb.mul(x=mb.slice_by_size(x=boxes, begin=[0, 2], size=[N, 2]), y=0.5)
            centre = mb.slice_by_size(x=boxes, begin=[0, 0], size=[N, 2])
            low, high = mb.sub(x=centre, y=half), mb.add(x=centre, y=half)
            boxes = mb.concat(values=[low, high], axis=1)
        scores = mb.reshape(x=mb.matmul(x=x, y=held["to_scores"]), shape=[N, C])
        scores = mb.add(x=scores, y=held["classes"])
        scores = mb.tanh(x=scores) if change == "tanh" else mb.sigmoid(x=scores)
        return mb.identity(x=boxes, name="boxes"), mb.identity(x=scores, name="scores")

    return ct.convert(program, minimum_deployment_target=ct.target.iOS17, skip_model_load=True,
                      compute_precision=ct.precision.FLOAT32)  # fmt: skip


def pipeline(path, change="", iou=0.5, least=0.3):
    """The detector, and Core ML's suppression as the last part."""
    first = detector(change).get_spec()
    suppress = Model_pb2.Model(specificationVersion=5)
    settings = suppress.nonMaximumSuppression
    settings.coordinatesInputFeatureName, settings.confidenceInputFeatureName = "boxes", "scores"
    settings.coordinatesOutputFeatureName = "coordinates"
    settings.confidenceOutputFeatureName = "confidence"
    settings.iouThreshold, settings.confidenceThreshold = iou, least
    settings.pickTop.perClass = True
    kind = ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    described = suppress.description
    for features, names in (
        (described.input, ("boxes", "scores")),
        (described.output, ("coordinates", "confidence")),
    ):
        for name, width in zip(names, (4, C), strict=True):
            array = features.add(name=name).type.multiArrayType
            array.shape[:], array.dataType = [N, width], kind
    for feature in suppress.description.output:
        feature.type.multiArrayType.ClearField("shape")
    whole = Model_pb2.Model(specificationVersion=first.specificationVersion)
    whole.description.input.extend(first.description.input)
    whole.description.output.extend(suppress.description.output)
    whole.pipeline.models.extend([first, suppress])
    weights_dir = detector(change).weights_dir
    ct.models.MLModel(whole, weights_dir=weights_dir, skip_model_load=True).save(str(path))
    return path


def test_the_same_boxes_stay(tmp_path):
    found = compare_with_source(pipeline(tmp_path / "p.mlpackage"), source(tmp_path / "s.onnx"))
    assert found.equal and found.suppression.equal, str(found)
    assert "before suppression boxes and confidences agree" in found.suppression.text
    assert found.suppression.after is True


@pytest.mark.parametrize(
    ("settings", "name"), [({"iou": 0.9}, "iouThreshold"), ({"least": 0.7}, "confidenceThreshold")]
)
def test_another_threshold_parts_after_suppression(settings, name, tmp_path):
    found = compare_with_source(
        pipeline(tmp_path / "p.mlpackage", **settings), source(tmp_path / "s.onnx")
    )
    assert found.suppression.before and found.suppression.after is False, str(found)
    assert found.first.node.op == "NonMaxSuppression" and found.first.kind == "threshold"
    assert name in found.first.cause


def test_corners_taken_for_centres(tmp_path):
    """https://github.com/apple/coremltools/issues/1339: up to suppression all was right, and Core
    ML takes boxes by centre, width and height where torchvision takes corners."""
    found = compare_with_source(
        pipeline(tmp_path / "p.mlpackage", "corners"), source(tmp_path / "s.onnx")
    )
    assert not found.suppression.before, str(found)
    assert found.first.kind == "box format" and found.first.node.op == "NonMaxSuppression"


def test_scores_that_part_before_suppression(tmp_path):
    found = compare_with_source(
        pipeline(tmp_path / "p.mlpackage", "tanh"), source(tmp_path / "s.onnx")
    )
    assert not found.suppression.before and found.first.node.name == "scores", str(found)
    assert found.first.kind == "activation"


@pytest.mark.parametrize("target", ["iOS16", "iOS17"])
def test_an_op_in_the_program(target, tmp_path):
    """From iOS 17 on it has no threshold of confidence, and boxes come last."""
    held, last = weights(), target == "iOS17"

    @build(tmp_path / "p.mlpackage", ((1, 8), types.fp32), opset=ct.target[target], **IN_SINGLE)
    def path(x):
        boxes = mb.reshape(x=mb.matmul(x=x, y=held["to_boxes"]), shape=[1, N, 4])
        boxes = mb.add(x=boxes, y=held["base"][None])
        scores = mb.reshape(x=mb.matmul(x=x, y=held["to_scores"]), shape=[1, N, C])
        scores = mb.sigmoid(x=mb.add(x=scores, y=held["classes"][None]))
        if last:
            boxes, scores = (mb.transpose(x=y, perm=[0, 2, 1]) for y in (boxes, scores))
        limit = {} if last else {"score_threshold": 0.3}
        return mb.non_maximum_suppression(
            boxes=boxes, scores=scores, iou_threshold=0.5, max_boxes=N,
            per_class_suppression=True, **limit,
        )  # fmt: skip

    found = compare_with_source(path, source(tmp_path / "s.onnx"))
    assert found.suppression.before, str(found)
    if last:
        assert "confidenceThreshold is 0, the source's 0.3" in found.first.cause
    else:
        assert found.equal, str(found)
