"""A source in ONNX: the nodes of a graph, each run alone by ONNX Runtime.

Without ONNX Runtime, onnx's own reference evaluator runs them, which is slow. A file is read as
`mlprogram.onnx.file` reads it: nothing in it is trusted, and its data lie in its folder.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlprogram.errors import InvalidInput, UnsupportedModel
from mlprogram.onnx.check.inputs import plausible_inputs
from mlprogram.onnx.file import OnnxGraph, describe, dimensions, opset_of, subgraphs
from mlprogram.onnx.runtime import open_session
from mlprogram.onnx.source.graph import SourceGraph, SourceInput, SourceNode
import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, defs, helper, load_from_string, numpy_helper
from onnx.reference import ReferenceEvaluator

#: The most elements of a constant that a node is given as such; larger ones are inputs of its run.
#: Some operators take shapes and axes only as constants.
SMALL = 1024


class OnnxSourceGraph(SourceGraph):
    """The graph of an .onnx file; a node without a name goes by its first result."""

    def __init__(self, path: str):
        if not Path(path).is_file():
            raise InvalidInput(f"{path}: no such file")
        self._file = OnnxGraph(Path(path))
        graph = self._file.model.graph
        self.constants = {
            tensor.name: numpy_helper.to_array(tensor, str(Path(path).parent))
            for tensor in graph.initializer
        }
        self.inputs = {}
        for feature in graph.input:
            if feature.name not in self.constants:
                dtype = helper.tensor_dtype_to_np_dtype(feature.type.tensor_type.elem_type)
                sizes = [s if isinstance(s, int) else None for s in dimensions(feature)]
                self.inputs[feature.name] = SourceInput(np.dtype(dtype), tuple(sizes))
        self.outputs = [feature.name for feature in graph.output]
        self._protos: dict[str, NodeProto] = {}
        self.nodes = [self._node(proto) for proto in self._file.nodes]
        self._sessions: dict[tuple, Any] = {}
        runner = "ONNX Runtime" if _has_runtime() else "onnx's reference evaluator"
        self.title = f"{path}, run by {runner}"

    def _node(self, proto: NodeProto) -> SourceNode:
        outputs = tuple(name for name in proto.output if name)
        reads = dict.fromkeys([*filter(None, proto.input), *_free_names(proto)])
        op = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        node = SourceNode(
            proto.name or outputs[0], op, tuple(reads), outputs, "", self._settings(proto)
        )
        self._protos[outputs[0]] = proto
        return node

    def _settings(self, proto: NodeProto) -> dict[str, Any]:
        """The attributes, those that the node leaves out by ONNX's defaults; graphs are none."""
        opset = opset_of(self._file.model)
        found: dict[str, Any] = {}
        if not proto.domain and defs.has(proto.op_type, opset, ""):
            for name, attribute in defs.get_schema(proto.op_type, opset, "").attributes.items():
                if attribute.default_value.name:
                    found[name] = helper.get_attribute_value(attribute.default_value)
        for item in proto.attribute:
            if not item.HasField("g") and not item.HasField("t") and not item.graphs:
                found[item.name] = helper.get_attribute_value(item)
        return {n: v.decode() if isinstance(v, bytes) else v for n, v in found.items()}

    def run_node(
        self, node: SourceNode, values: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        arrays = {name: np.asarray(values[name]) for name in node.inputs}
        if any(array.dtype == object for array in arrays.values()):
            proto = self._protos[node.outputs[0]]
            raise UnsupportedModel(f"{self.title}: {describe(proto)}: sequences are not compared")
        small = {n: a for n, a in arrays.items() if n in self.constants and a.size <= SMALL}
        given = {name: array for name, array in arrays.items() if name not in small}
        key = (
            node.outputs[0],
            repr(sorted(settings.items())) if settings else "",
            tuple((name, array.tobytes()) for name, array in small.items()),
            tuple((name, array.dtype.str, array.shape) for name, array in given.items()),
        )
        if key not in self._sessions:
            self._sessions[key] = _session(self._model(node, given, small, settings))
        return dict(zip(node.outputs, self._sessions[key].run(None, given), strict=True))

    def plausible(self, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Masks, ids and positions among them."""
        features = {
            name: (self.inputs[name].dtype, shape if self.inputs[name].shape else ())
            for name, shape in shapes.items()
        }
        return plausible_inputs(self._file.model.graph, features, seed)

    def _model(
        self, node: SourceNode, given: Mapping, small: Mapping, settings: Mapping | None
    ) -> bytes:
        """A model of this node alone."""
        proto = NodeProto()
        proto.CopyFrom(self._protos[node.outputs[0]])
        if settings is not None:
            kept = [item for item in proto.attribute if item.name not in settings]
            del proto.attribute[:]
            made = [helper.make_attribute(n, v) for n, v in settings.items() if v not in (None, [])]
            proto.attribute.extend([*kept, *made])
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in given.items()
        ]
        outputs = [ValueInfoProto(name=name) for name in node.outputs]
        tensors = [numpy_helper.from_array(array, name) for name, array in small.items()]
        graph = helper.make_graph([proto], "node", inputs, outputs, tensors)
        whole = self._file.model
        model = helper.make_model(
            graph, opset_imports=whole.opset_import, functions=list(whole.functions)
        )
        model.ir_version = min(model.ir_version, max(whole.ir_version, 8))
        return model.SerializeToString()


def _has_runtime() -> bool:
    return find_spec("onnxruntime") is not None


def _session(model: bytes):
    """What runs a model by `run(None, inputs)`."""
    if not _has_runtime():
        return ReferenceEvaluator(load_from_string(model))
    return open_session(model, threads=1)


def _free_names(node: NodeProto) -> Iterator[str]:
    """The values of the graph around that a node's branches and bodies read."""
    for graph in subgraphs(node):
        known = {value.name for value in (*graph.input, *graph.initializer)}
        yield from (name for name in _read(graph) if name not in known)


def _read(graph: GraphProto) -> Iterator[str]:
    made = {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (n for n in (*node.input, *_free_names(node)) if n and n not in made)
    yield from (value.name for value in graph.output if value.name not in made)
