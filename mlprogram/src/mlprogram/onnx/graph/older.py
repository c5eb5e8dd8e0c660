"""Convert graphs of opsets before 13 to opset 13.

onnx's version converter does most of it, but leaves the nodes of three operators unchanged although
their meaning has changed. Those are rewritten here: Hardmax, which flattened all axes from its own
on until opset 13; Resize and Upsample, which had no choice of coordinates until opset 11; and
PRelu, which had one slope per channel until opset 7.
"""

from pathlib import Path
import re

from mlprogram.errors import UnsupportedModel, UnsupportedOp
from mlprogram.onnx.file import (
    OLDEST,
    ONNX_DOMAINS,
    all_nodes,
    attribute,
    constants_of,
    describe,
    subgraphs,
)
from mlprogram.onnx.graph.ops import Unsayable
from mlprogram.onnx.graph.ops._common import in_mil
from mlprogram.onnx.graph.order import set_nodes
import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, defs, helper, numpy_helper, shape_inference
from onnx.version_converter import convert_version

ANY_NUMBER = {"Constant", "Slice"}  # a slice may end at INT64_MAX


def carried_over(model: ModelProto, opset: int, path: Path) -> ModelProto:
    """Convert the model to opset 13 if it is older. Raises UnsupportedModel."""
    if opset >= OLDEST:
        return model
    for node in all_nodes(model.graph):
        _check_numbers(node, path)
    try:
        if opset < 7:
            _spread_slopes(model)
        model = convert_version(model, OLDEST)
    except Exception as error:  # onnx raises RuntimeError and errors of its own from C++
        raise UnsupportedModel(
            f"{path} is of opset {opset}, and onnx cannot carry it over to {OLDEST}: "
            f"{_stumbled(model, opset, str(error))}"
        ) from None
    _mend(model.graph, opset)
    return model


def _check_numbers(node: NodeProto, path: Path) -> None:
    """Refuse whole numbers beyond int32, which some of onnx's conversions cut to C's int."""
    for item in node.attribute if node.op_type not in ANY_NUMBER else ():
        try:
            in_mil(np.array([item.i, *item.ints], np.int64))
        except Unsayable as error:
            raise UnsupportedOp(f"{path}: {describe(node)} has {error}") from None


def _stumbled(model: ModelProto, opset: int, said: str) -> str:
    """Explain why onnx's version converter failed: `said` speaks in terms of its C++ code."""
    names = {node.op_type for node in model.graph.node if node.domain in ONNX_DOMAINS}
    if unknown := sorted(name for name in names if not defs.has(name)):
        return f"ONNX does not define {', '.join(unknown)} (any more)"
    if found := re.search(r"No Adapter \w+ Version \$?(\d+) for (\w+)", said):
        try:
            since = defs.get_schema(found[2], opset).since_version
        except defs.SchemaError:
            return f"that opset has no {found[2]}"
        return f"it has no later form for {found[2]} of opset {since}"
    return f"it says: {plainly(said)}"


def plainly(said: str) -> str:
    """The first line of what onnx's C++ says, without the place in its code."""
    plain = re.sub(r"^.*?\S+:\d+: \w+: Assertion `.*?` failed: ", "", said.strip())
    return (plain.splitlines() or ["nothing"])[0]


def _mend(graph: GraphProto, opset: int) -> None:
    """Rewrite the nodes of a graph and its subgraphs, so that they keep their old meaning."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            _mend(inner, opset)
        if node.op_type == "Resize" and opset < 11:
            _keep_coordinates(node, graph)
        nodes += _flattened(node) if node.op_type == "Hardmax" else [node]
    set_nodes(graph, nodes)


def _spread_slopes(model: ModelProto) -> None:
    """Reshape PRelu's slopes: before opset 7 they belong to the channels, since then they broadcast
    from the last axis. Raises ValueError."""
    graph = shape_inference.infer_shapes(model).graph
    tensors = {f.name: f.type.tensor_type for f in [*graph.input, *graph.value_info]}
    ranks = {name: len(t.shape.dim) for name, t in tensors.items() if t.HasField("shape")}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "PRelu" and ranks.get(node.input[1]) == 1:
            rank = ranks.get(node.input[0])
            if rank is None:
                raise ValueError(f"it does not infer the rank of {node.input[0]!r}")
            if rank > 2:
                axes, spread = list(range(1, rank - 1)), f"{node.output[0]}_slopes"
                nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [spread], axes=axes))
                node.input[1] = spread
        nodes.append(node)
    set_nodes(model.graph, nodes)


def _keep_coordinates(node: NodeProto, graph: GraphProto) -> None:
    """Have an old Resize take row i from i / scale. The rounding of "nearest", which was not
    defined, is ONNX Runtime's."""
    scales = constants_of(graph).get(node.input[2])
    shrinks = scales is not None and numpy_helper.to_array(scales).min(initial=1) < 1
    nearest = "ceil" if shrinks else "floor"
    node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    node.attribute.append(helper.make_attribute("nearest_mode", nearest))


def _flattened(node: NodeProto) -> list[NodeProto]:
    """Replace an old Hardmax by one of a matrix: the axes before its own, and the rest."""
    axis = attribute(node, "axis", 1)
    (x,), (y,) = node.input, node.output
    shape, flat, made = (f"{y}/{part}" for part in ("shape", "flat", "made"))
    return [
        helper.make_node("Shape", [x], [shape]),
        helper.make_node("Flatten", [x], [flat], axis=axis),
        helper.make_node("Hardmax", [flat], [made], node.name, axis=1),
        helper.make_node("Reshape", [made, shape], [y]),
    ]
