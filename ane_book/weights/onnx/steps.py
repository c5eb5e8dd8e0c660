"""`DecoderWalk`: steps from a value of a graph back to the node that computes it.

Nodes' names differ between exporters, so parts are recognised by their operators and connections,
looking through Cast and Identity. An error names the node that does not fit, its inputs, and the
nodes that compute those.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ane_book.errors import UnsupportedModel
from mlprogram.onnx.file import OnnxGraph, StoredTensor, attribute, describe

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto


NORM, RMS_NORM = "SimplifiedLayerNormalization", "RMSNormalization"
NEAR = 8  # the most nodes that an error names
SKIP = "SkipSimplifiedLayerNormalization"  # adds two values (output 3) and norms the sum (output 0)


@dataclass(frozen=True)
class Norm:
    """An RMS norm of the value `source`."""

    source: str
    weight: StoredTensor
    epsilon: float


class DecoderWalk:
    """Recognises common parts of one graph: casts, sums, norms."""

    def __init__(self, graph: OnnxGraph):
        self.graph = graph

    def value(self, name: str) -> str:
        """Look through Cast and Identity. The sum that a SKIP node outputs is "sum of OUTPUT 0"."""
        for _ in self.graph.nodes:
            node = self.graph.producer(name)
            if node is None or node.op_type not in ("Cast", "Identity") or not node.input:
                break
            name = node.input[0]
        node = self.graph.producer(name)
        if node is not None and node.op_type == SKIP and name in node.output[3:4]:
            return f"sum of {node.output[0]}"
        return name

    def node(self, name: str) -> "NodeProto | None":
        """The node that computes a value, looking through casts; None as in `producer`."""
        return self.graph.producer(self.value(name).removeprefix("sum of "))

    def node_of(self, name: str, *kinds: str) -> "NodeProto | None":
        """The node that computes a value if its operator is one of `kinds`, else None."""
        node = self.node(name)
        return node if node is not None and node.op_type in kinds else None

    def sum(self, name: str) -> tuple[str, str] | None:
        """The two values whose sum this one is; None if it is no sum."""
        node = self.node_of(name, SKIP, "Add")
        if node is None or (node.op_type == SKIP) != self.value(name).startswith("sum of "):
            return None
        if node.op_type == SKIP and any(node.input[3:4]):
            self.refuse(node, "a sum of two, without the bias")
        return self.value(node.input[0]), self.value(node.input[1])

    def norm(self, name: str) -> Norm | None:
        """The RMS norm that computes a value, or None."""
        node = self.node_of(name, SKIP, NORM, RMS_NORM)
        if node is None or self.value(name).startswith("sum of "):
            return None
        if node.op_type == SKIP:
            source, weight, least = f"sum of {node.output[0]}", node.input[2], 1e-12
        else:
            if attribute(node, "axis", -1) != -1 or len(node.input) != 2:
                self.refuse(node, "a norm over the last axis")
            source, weight, least = self.value(node.input[0]), node.input[1], 1e-5
        stored = self.graph.constants.get(weight)
        if stored is None or len(stored.shape) != 1:
            self.refuse(node, "a norm whose weight is stored")
        return Norm(source, stored, attribute(node, "epsilon", least))

    def refuse(self, node: "NodeProto | None", part: str) -> NoReturn:
        """Raise UnsupportedModel for a node that stands where `part` is expected."""
        if node is None:
            raise UnsupportedModel(f"{self.graph.path}: {part} is missing from the graph")
        near = [maker for name in node.input if name and (maker := self.node(name))]
        near += [maker for n in near for name in n.input if name and (maker := self.node(name))]
        before = "; ".join(list(dict.fromkeys(describe(maker) for maker in near))[:NEAR])
        raise UnsupportedModel(
            f"{self.graph.where(node)}: not recognised as {part}; before it: "
            f"{before or 'inputs and stored tensors alone'}"
        )
