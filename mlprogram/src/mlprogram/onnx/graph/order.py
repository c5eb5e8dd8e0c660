"""Sort the nodes of a graph topologically.

ONNX demands sorted files, but ONNX Runtime also runs unsorted ones, so some exporters write them.
"""

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from mlprogram.onnx.file import subgraphs
from onnx import FunctionProto, GraphProto, NodeProto


def put_in_order(graph: GraphProto | FunctionProto) -> None:
    """Sort the nodes of a graph and of its subgraphs in place, if they are not sorted.

    The nodes of a cycle stay unsorted; translation then refuses them for an unknown input.
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


def set_nodes(graph: GraphProto | FunctionProto, nodes: Iterable[NodeProto]) -> None:
    """Replace a graph's nodes by these, which may include its own."""
    copied = type(graph)(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copied.node)


def _taken(node: NodeProto) -> Iterator[str]:
    """The names of the values that a node reads, itself and in its subgraphs."""
    yield from node.input
    for inner in subgraphs(node):
        yield from (feature.name for feature in inner.output)
        for other in inner.node:
            yield from _taken(other)
