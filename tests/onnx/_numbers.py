"""Models of one node with another whole number in an attribute or a constant."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from mlprogram.onnx.graph.ops import OPERATORS, Bound, Constant
from nodes import as_array
import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

WHOLE = defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS


def alone(cases: dict) -> dict:
    """The smallest of ONNX's cases for each operator of the table that is a model of it alone."""
    found: dict = {}
    for case in cases.values():
        nodes = case.model.graph.node
        arrays = [as_array(value) for value in case.data_sets[0][0]]
        if len(nodes) == 1 and nodes[0].op_type in OPERATORS and all(a.size for a in arrays):
            size = sum(array.size for array in arrays)
            best = found.get(nodes[0].op_type)
            if best is None or size < best[0]:
                found[nodes[0].op_type] = size, case
    return {op: case for op, (_, case) in found.items()}


def changed(case, number: int, path: Path) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Write a model for each attribute and each constant of whole numbers, whose first is `number`:
    its name, and the shapes of the inputs that are left."""
    node, inputs = case.model.graph.node[0], case.model.graph.input
    given = dict(zip((f.name for f in inputs), map(as_array, case.data_sets[0][0]), strict=False))
    annotations = [p.annotation for p in OPERATORS[node.op_type].parameters]
    kinds = [{a, *get_args(a)} & {Bound, Constant} for a in annotations]
    known = {name for name, kind in zip(node.input, kinds, strict=False) if kind} & given.keys()
    constants = {name: given[name] for name in sorted(known)}
    shapes = {name: array.shape for name, array in given.items() if name not in known}
    opset = max(entry.version for entry in case.model.opset_import)
    for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
        had = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)
        if attribute.type in WHOLE:
            value = [number, *(had or [])[1:]] if attribute.type == WHOLE[1] else number
            _write(case.model, constants, {name: value}, path)
            yield name, shapes
    for name, array in constants.items():
        if array.dtype == np.int64:
            other = array.copy()
            other.flat[0] = number
            _write(case.model, constants | {name: other}, {}, path)
            yield name, shapes


def _write(model, constants: dict[str, np.ndarray], attributes: dict, path: Path) -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, (node,) = changed.graph, changed.graph.node
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in attributes.items())])
    inputs = [feature for feature in graph.input if feature.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    onnx.save(changed, path)
