"""Detectors: boxes and confidences before non-maximum suppression, and the boxes that stay after.

A package may suppress boxes by an op or by the last part of a pipeline. What goes in is compared
with what goes into the source's own suppression, or with the source's outputs if it has none; what
stays is compared only where the source suppresses too. Core ML's part takes boxes by their centre,
width and height, ONNX's operator by two corners unless `center_point_box` says otherwise, so both
are brought to corners first.

Letters: N boxes, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlprogram.onnx.source.graph import SourceGraph, SourceNode
from mlprogram.onnx.source.match import gap
from mlprogram.onnx.source.package import SUPPRESSION, PackageRun
from mlprogram.run.pipeline import THRESHOLDS
import numpy as np

ROOM = 0.01  # of the largest coordinate: by how much boxes that count as the same may differ


@dataclass(frozen=True)
class Detections:
    """One side of a suppression. boxes (N, 4) as corners x1, y1, x2, y2; scores (N, C).

    kept: pairs (box, class or -1 where the side does not say). settings: thresholds by name.
    names: of the values boxes and scores.
    """

    boxes: np.ndarray
    scores: np.ndarray
    kept: list[tuple[int, int]]
    settings: dict[str, float]
    names: tuple[str, str]

    def several(self) -> bool:
        """Whether a box is above the threshold for several classes."""
        return bool(((self.scores > self.settings[THRESHOLDS[1]]).sum(axis=1) > 1).any())


@dataclass(frozen=True)
class SuppressionVerdict:
    """before: whether boxes and confidences agree; after: whether the same boxes stay, None if the
    source suppresses none. kind and text: the cause, if there is one."""

    before: bool
    after: bool | None
    text: str
    kind: str = ""
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.before and self.after is not False


def corners(boxes: np.ndarray) -> np.ndarray:
    """(N, 4) of centre, width and height -> of two corners."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def of_package(run: PackageRun) -> Detections | None:
    """What a package's suppression reads and keeps, if it has one."""
    operation = next((o for o in run.operations() if o.type == SUPPRESSION), None)
    if run.suppressions:
        part = run.suppressions[-1]
        given = {n: run.results[n] for n in part.inputs if n in run.results}
        kept, _ = part.predict(given).values()
        boxes = run.results[part.boxes].astype(np.float64)
        rows = [int(np.abs(boxes - row).max(axis=1).argmin()) for row in kept if row.any()]
        settings = {n: float(getattr(part.settings, n)) for n in THRESHOLDS}
        return Detections(corners(boxes), run.results[part.scores],
                          [(row, -1) for row in rows], settings, (part.boxes, part.scores))
    if operation is None:
        return None
    held = {value.name: value.array for value in run.values}
    boxes, scores = (held[str(operation.inputs[key][0])] for key in ("boxes", "scores"))
    boxes, scores = boxes[0], scores[0]
    if "score_threshold" not in operation.inputs:  # from iOS 17 on boxes come last
        boxes, scores = boxes.T, scores.T
    indices = held[operation.outputs[2][0]][0]
    rows = [int(row) for row in indices if row >= 0]
    constants = dict(run.constants())
    settings = {}
    for name, key in zip(THRESHOLDS, ("iou_threshold", "score_threshold"), strict=True):
        item = operation.inputs.get(key, [None])[0]
        value = constants.get(item) if isinstance(item, str) else item and item.array()
        settings[name] = float(np.ravel(value)[0]) if value is not None else 0.0
    names = str(operation.inputs["boxes"][0]), str(operation.inputs["scores"][0])
    return Detections(corners(boxes.astype(np.float64)), scores,
                      [(row, -1) for row in rows], settings, names)


def node_of(source: SourceGraph) -> SourceNode | None:
    """The source's suppression: ONNX's operator."""
    return next((n for n in source.nodes if n.op == "NonMaxSuppression"), None)


def of_source(source: SourceGraph, values: Mapping[str, Any]) -> Detections | None:
    node = node_of(source)
    if node is None:
        return None
    boxes, scores = values[node.inputs[0]][0], values[node.inputs[1]][0]
    kept = [(int(box), int(kind)) for _, kind, box in values[node.outputs[0]]]
    limits = [float(np.ravel(values[name])[0]) for name in node.inputs[3:5]]
    settings = dict(zip(THRESHOLDS, [*limits, 0.0, 0.0][:2], strict=True))
    centred = bool(node.settings.get("center_point_box"))
    by_corner = corners(boxes.astype(np.float64)) if centred else _ordered(boxes)
    return Detections(by_corner, scores.T, kept, settings, (node.inputs[0], node.inputs[1]))


def _ordered(boxes: np.ndarray) -> np.ndarray:
    """ONNX's corners may be any two that are opposite, y first; here the lower one, x first."""
    pairs = boxes.astype(np.float64)[:, [1, 0, 3, 2]].reshape(-1, 2, 2)
    return np.concatenate([pairs.min(axis=1), pairs.max(axis=1)], axis=1)


def compare_suppression(package: Detections, source: Detections) -> SuppressionVerdict:
    """Hold a package's suppression to the source's."""
    errors = {"scores": gap(package.scores, source.scores)}
    candidates = {"": source.boxes, "y before x": source.boxes[:, [1, 0, 3, 2]]}
    found = {said: gap(package.boxes, boxes) for said, boxes in candidates.items()}
    said = min(found, key=lambda each: found[each])
    errors["boxes"] = found[said]
    if max(errors.values()) > ROOM:
        kind, text = _before(package, source)
        return SuppressionVerdict(False, None, text, kind, errors)
    ours, theirs = ({row for row, _ in side.kept} for side in (package, source))
    if ours == theirs:
        text = f"before suppression boxes and confidences agree, after it the same {len(ours)} stay"
        return SuppressionVerdict(True, True, text, "", errors)
    text = f"before suppression boxes and confidences agree; after it {len(ours)} boxes stay, of " \
        f"the source {len(theirs)} ({len(ours & theirs)} are the same)"
    kind = "suppression"
    for name in THRESHOLDS:
        if abs(package.settings[name] - source.settings[name]) > 1e-3:
            text += f"; {name} is {package.settings[name]:.4g}, the source's " \
                f"{source.settings[name]:.4g}"
            kind = "threshold"
    if kind == "suppression" and source.several():
        text += "; Core ML counts a box for its best class alone, ONNX for every class"
    return SuppressionVerdict(True, False, text, kind, errors)


def _before(package: Detections, source: Detections) -> tuple[str, str]:
    """Why boxes differ before suppression: corners taken for centres, or a scale."""
    if gap(package.scores, source.scores) > ROOM:
        return "", "before suppression the confidences differ"
    given = package.boxes
    back = np.concatenate(
        [(given[:, :2] + given[:, 2:]) / 2, given[:, 2:] - given[:, :2]], axis=1
    )  # as the package was given them
    for boxes in (source.boxes, source.boxes[:, [1, 0, 3, 2]]):
        if gap(back, boxes) <= ROOM:
            return "box format", "before suppression the package is given boxes by two corners, " \
                "and takes them for centre, width and height"
        factor = float(given.ravel() @ boxes.ravel() / max((boxes**2).sum(), 1e-30))
        if gap(given, factor * boxes) <= ROOM:
            return "scale", f"before suppression the package's boxes are {factor:.6g} times the " \
                "source's"
    return "", "before suppression the boxes differ"
