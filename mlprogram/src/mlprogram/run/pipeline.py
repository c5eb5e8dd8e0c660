"""Pipelines: a sequence of models, each of which reads the inputs and the results of those before.

    model = open_model("detector.mlpackage")    # an MLProgram or a Pipeline
    model.predict({"image": photo, "iouThreshold": 0.5})

Parts are ML Programs, and the non-maximum suppression that detectors end with. Values go from part
to part by the names in their descriptions (`mlmodel/format/Model.proto` and
`NonMaximumSuppression.proto` of apple/coremltools).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from mlprogram.arithmetic import Semantics
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.ops.tensor_operation import kept_boxes
from mlprogram.package.container import Container, open_container, refuse
from mlprogram.package.description import Feature, by_name, random_inputs, to_array
from mlprogram.package.values import TensorType
from mlprogram.run.program import MLProgram, State, described
import numpy as np
import torch

THRESHOLDS = ("iouThreshold", "confidenceThreshold")

#: ArrayFeatureType.ArrayDataType -> numpy
DTYPES = {65600: np.float64, 65568: np.float32, 65552: np.float16}


def open_model(
    path: str | Path,
    function_name: str | None = None,
    precision: str = "fp16",
    semantics: Semantics | None = None,
) -> "MLProgram | Pipeline":
    """Open a package or compiled model with an ML Program, or with a pipeline of them.

    Raises as `MLProgram` does, and InvalidPackage for a pipeline with a part of another type.
    """
    container = open_container(path)
    if container.spec.WhichOneof("Type") != "pipeline":
        return MLProgram(container, function_name, precision, semantics=semantics)
    if function_name:
        raise InvalidInput(f"{path}: a pipeline has no functions, and {function_name!r} is asked")
    return Pipeline(container, precision, semantics)


class Pipeline:
    """A model whose parts run one after the other; `predict` is `MLProgram.predict`.

    parts: the models in order. inputs, outputs: as the pipeline's description names them, with the
    types that the parts declare.
    """

    name = "pipeline"

    def __init__(
        self,
        container: Container,
        precision: str = "fp16",
        semantics: Semantics | None = None,
    ):
        self.path, self.precision = container.path, precision
        self.parts = [
            _open_part(container, index, part, precision, semantics)
            for index, part in enumerate(container.spec.pipeline.models)
        ]
        description = container.spec.description
        self._given = [feature.name for feature in description.input]
        self._needed = [n for part in self.parts for n in _needed(part) if n in self._given]
        self._check([feature.name for feature in description.output])
        types = {name: type_ for part in self.parts[::-1] for name, type_ in part.inputs.items()}
        made = {name: type_ for part in self.parts for name, type_ in part.outputs.items()}
        self.inputs = {name: types[name] for name in self._given if name in types}
        self.outputs = {f.name: (made | self.inputs)[f.name] for f in description.output}

    def __repr__(self) -> str:
        return described(self, self.path)

    @overload
    def predict(
        self, inputs: Mapping[str, object], state: State | None = None
    ) -> dict[str, Any]: ...

    @overload
    def predict(
        self, inputs: list[Mapping[str, object]], state: State | None = None
    ) -> list[dict[str, Any]]: ...

    def predict(self, inputs: Any, state: State | None = None) -> Any:
        """Run all parts on named inputs; returns the pipeline's outputs by name.

        Raises InvalidInput like `MLProgram.predict`.
        """
        if isinstance(inputs, list):
            return [self.predict(one, state) for one in inputs]
        values = dict(by_name(inputs, self._given))
        unknown = sorted(values.keys() - {*self._given})
        missing = [
            n for p in self.parts for n in _needed(p) if n in self._given and n not in values
        ]
        if unknown or missing:
            raise InvalidInput(
                f"the pipeline takes {', '.join(self._given)}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        for part in self.parts:
            given = {name: values[name] for name in part.inputs if name in values}
            values |= part.predict(given, state)
        return {name: values[name] for name in self.outputs}

    def make_state(self) -> State:
        """The states of all parts, zero."""
        parts = [part for part in self.parts if isinstance(part, MLProgram)]
        return State({n: t for part in parts for n, t in part.make_state().tensors.items()})

    @property
    def states(self) -> dict:
        parts = [part for part in self.parts if isinstance(part, MLProgram)]
        return {name: type_ for part in parts for name, type_ in part.states.items()}

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """An array for every input that an ML Program takes; equal seeds give equal arrays."""
        features: dict[str, Feature] = {}
        for part in self.parts:
            if isinstance(part, MLProgram):
                features = {n: f for n, f in part.features.items() if n in self.inputs} | features
        return random_inputs(features, seed)

    def _check(self, outputs: list[str]) -> None:
        """Check that every value is computed before a part reads it."""
        if not self.parts:
            raise InvalidPackage(f"{self.path}: a pipeline without parts")
        known = {*self._given}
        for index, part in enumerate(self.parts):
            if lost := sorted(name for name in _needed(part) if name not in known):
                raise InvalidPackage(
                    f"{self.path}: part {index} takes {', '.join(lost)}, which nothing gives"
                )
            known.update(part.outputs)
        if lost := [name for name in outputs if name not in known]:
            raise InvalidPackage(f"{self.path}: no part gives its output {', '.join(lost)}")


class Suppression:
    """Non-maximum suppression: keeps some of the boxes (N, 4) and confidences (N, C), best first.

    A box is (x, y, width, height) around its centre, with the confidence of its best class. It is
    removed if that is below the confidence threshold, or if its overlap with a better box (of the
    same class, if `perClass` is set) is above the other threshold. Apple's source says neither what
    happens to a box exactly at a threshold (here it stays), nor whether the classes' sum or best is
    meant.
    """

    def __init__(self, spec, path: Path):
        self.path, self.settings = path, spec.nonMaximumSuppression
        settings = self.settings
        self.boxes = settings.coordinatesInputFeatureName
        self.scores = settings.confidenceInputFeatureName
        boxes, scores = TensorType("fp32", (None, 4)), TensorType("fp32", (None, None))
        self.inputs = {
            settings.iouThresholdInputFeatureName: TensorType("fp32", ()),
            settings.confidenceThresholdInputFeatureName: TensorType("fp32", ()),
            self.boxes: boxes,
            self.scores: scores,
        }
        self.inputs.pop("", None)
        self.outputs = {
            settings.coordinatesOutputFeatureName: boxes,
            settings.confidenceOutputFeatureName: scores,
        }
        described = {f.name: f.type.multiArrayType for f in spec.description.output}
        self._declared = [described.get(name) for name in self.outputs]

    def predict(self, inputs: Mapping[str, object], state: State | None = None) -> dict:
        """Return the boxes (M, 4) and confidences (M, C) that stay. Raises InvalidInput."""
        boxes, scores = (to_array(inputs[name], f"{name!r} is a matrix") for name in _needed(self))
        if boxes.ndim != 2 or scores.ndim != 2 or boxes.shape != (len(scores), 4):
            raise InvalidInput(
                f"{self.boxes!r} must be (N, 4) and {self.scores!r} (N, classes), not "
                f"{boxes.shape} and {scores.shape}"
            )
        overlap, least = (self._threshold(inputs, name) for name in THRESHOLDS)
        kept: list[int] = []
        if scores.size and scores.max() >= least:
            kept = kept_boxes(
                torch.from_numpy(boxes.astype(np.float64)),
                torch.from_numpy(scores.astype(np.float64)),
                iou=overlap,
                limit=least,
                count=len(boxes),
                per_class=self.settings.pickTop.perClass,
            )
        low, high = self._bounds()
        kept = kept if high is None else kept[:high]
        results = [
            self._result(array[kept], declared, low)
            for array, declared in zip((boxes, scores), self._declared, strict=True)
        ]
        return dict(zip(self.outputs, results, strict=True))

    def to_json(self) -> dict:
        """Its parameters in plain JSON values."""
        settings = self.settings
        rows = [(name, str(getattr(settings, name))) for name in THRESHOLDS]
        rows.append(("perClass", str(settings.pickTop.perClass)))
        return {"package": str(self.path), "suppression": [("non-maximum suppression", ""), *rows]}

    def _threshold(self, inputs: Mapping[str, object], setting: str) -> float:
        name = getattr(self.settings, f"{setting}InputFeatureName")
        if name not in inputs:
            return getattr(self.settings, setting)
        value = to_array(inputs[name], f"{name!r} is a number")
        if value.size != 1 or not value.item() >= 0:  # which NaN is not
            raise InvalidInput(f"{name!r} must be one number from 0 on, not {inputs[name]!r:.80}")
        return float(value.item())

    def _bounds(self) -> tuple[int, int | None]:
        """The least and the most boxes in the description; rows of 0 are added up to the least."""
        for declared in filter(None, self._declared):
            ranges = declared.shapeRange.sizeRanges
            if ranges:
                high = ranges[0].upperBound
                return ranges[0].lowerBound, None if high < 0 else high
            if declared.shape:
                return declared.shape[0], declared.shape[0]
        return 0, None

    def _result(self, rows: np.ndarray, declared, low: int) -> np.ndarray:
        dtype = DTYPES.get(declared.dataType if declared else 0, rows.dtype)
        missing = max(low - len(rows), 0)
        return np.pad(rows.astype(dtype), ((0, missing), (0, 0)))


def _open_part(
    container: Container, index: int, spec, precision: str, semantics: Semantics | None
) -> MLProgram | Suppression:
    where = Path(f"{container.path}, part {index}")
    match spec.WhichOneof("Type"):
        case "mlProgram":
            part = replace(container, path=where, spec=spec)
            return MLProgram(part, None, precision, semantics=semantics)
        case "nonMaximumSuppression":
            return Suppression(spec, where)
        case kind:
            raise refuse(kind, where)


def _needed(part: MLProgram | Suppression) -> list[str]:
    """The required inputs of a part."""
    if isinstance(part, Suppression):
        return [part.boxes, part.scores]
    return [name for name, feature in part.features.items() if feature.fill is None]
