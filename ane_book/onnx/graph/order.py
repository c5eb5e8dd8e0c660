"""The nodes of a graph in an order in which each follows those whose results it takes.

ONNX asks files to have such an order. ONNX Runtime runs those that do not, and so they are written.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ane_book.onnx.file import subgraphs

if TYPE_CHECKING:  # onnx is an extra
    from onnx import FunctionProto, GraphProto, NodeProto

__all__ = ["put_in_order", "set_nodes"]


def put_in_order(graph: "GraphProto | FunctionProto") -> None:
    """Order a graph's nodes and those of the graphs in them, in place.

    A node moves only where it has to. The nodes of a circle, and those that rest on it, come last.
    """
    for node in graph.node:
        for inner in subgraphs(node):
            put_in_order(inner)
    order = _order(graph.node)
    if order != list(range(len(order))):
        set_nodes(graph, [graph.node[place] for place in order])


def set_nodes(graph: "GraphProto | FunctionProto", nodes: "Iterable[NodeProto]") -> None:
    """Give a graph these nodes, its own among them."""
    copied = type(graph)(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copied.node)


def _order(nodes: "Sequence[NodeProto]") -> list[int]:
    """The places of the nodes in the order they are to have: always the first that can be next."""
    makers: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.output:
            makers.setdefault(name, place)
    takers: dict[int, list[int]] = {}
    missing = []
    for place, node in enumerate(nodes):
        before = {makers[name] for name in _taken(node) if name and name in makers}
        missing.append(len(before))
        for maker in before:
            takers.setdefault(maker, []).append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for place in takers.get(order[-1], ()):
            missing[place] -= 1
            if not missing[place]:
                heappush(ready, place)
    return order + [place for place, count in enumerate(missing) if count]


def _taken(node: "NodeProto") -> Iterator[str]:
    """The names that a node takes, those that the graphs in it take of this one among them."""
    yield from node.input
    for inner in subgraphs(node):
        yield from (feature.name for feature in inner.output)
        for other in inner.node:
            yield from _taken(other)
