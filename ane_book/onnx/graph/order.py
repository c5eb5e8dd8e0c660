"""The nodes of a graph in an order in which each follows those whose results it takes.

ONNX asks files to have such an order. ONNX Runtime runs those that do not, and so they are written.
"""

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from ane_book.onnx.file import subgraphs

if TYPE_CHECKING:  # onnx is an extra
    from onnx import FunctionProto, GraphProto, NodeProto

__all__ = ["put_in_order", "set_nodes"]


def put_in_order(graph: "GraphProto | FunctionProto") -> None:
    """Order a graph's nodes and those of the graphs in them, in place, where they are not.

    The nodes of a circle stay where they are: what they take is given by nothing before them.
    """
    for node in graph.node:
        for inner in subgraphs(node):
            put_in_order(inner)
    makers: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        for name in filter(None, node.output):
            makers.setdefault(name, place)
    before = {
        place: {makers[name] for name in _taken(node) if name in makers}
        for place, node in enumerate(graph.node)
    }
    if any(max(others, default=-1) >= place for place, others in before.items()):
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError:
            return
        set_nodes(graph, [graph.node[place] for place in order])


def set_nodes(graph: "GraphProto | FunctionProto", nodes: "Iterable[NodeProto]") -> None:
    """Give a graph these nodes, its own among them."""
    copied = type(graph)(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copied.node)


def _taken(node: "NodeProto") -> Iterator[str]:
    """The names that a node takes, those that the graphs in it take of this one among them."""
    yield from node.input
    for inner in subgraphs(node):
        yield from (feature.name for feature in inner.output)
        for other in inner.node:
            yield from _taken(other)
