"""Constant folding of a node with known operands, by onnx's own reference evaluator."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto

__all__ = ["NotComputed", "TooLarge", "evaluate"]

LARGEST = 2**30  # the most bytes of a result that is larger than its operands
#: With more than 64 elements onnx.reference takes one element of a row, and of the wrong axis.
WRONG = {"GatherElements"}

#: Operators whose results can be far larger than their operands -> the size of their result.
SIZES: dict[str, Callable[..., Iterable[float]]] = {
    "ConstantOfShape": lambda shape: shape,
    "Expand": lambda x, shape: np.broadcast_shapes(x.shape, tuple(int(s) for s in shape)),
    "Tile": lambda x, repeats: [int(a) * int(b) for a, b in zip(x.shape, repeats, strict=True)],
    "Range": lambda start, limit, delta: [abs(float((limit - start) / delta))],
    "OneHot": lambda places, depth, values: [places.size, int(np.asarray(depth).flat[0])],
    "Pad": lambda x, pads, *rest: [x.size, *(1 + np.abs(pads.astype(np.float64)))],
}


class NotComputed(Exception):
    """A node cannot be folded; the message says why."""


class TooLarge(NotComputed):
    """The result would be larger than LARGEST."""


def evaluate(node: "NodeProto", operands: Mapping[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """Compute a node's results from its operands by name. Raises NotComputed."""
    from onnx import TypeProto, helper
    from onnx.reference import ReferenceEvaluator

    infos = [helper.make_value_info(name, TypeProto()) for name in operands]
    outputs = [helper.make_value_info(name, TypeProto()) for name in node.output if name]
    graph = helper.make_graph([node], "fold", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        if node.op_type in WRONG:
            raise NotImplementedError(f"onnx's own {node.op_type} is wrong for some shapes")
        if node.op_type in SIZES:
            count = float(np.prod([float(n) for n in SIZES[node.op_type](*operands.values())]))
            if 8 * count > LARGEST:
                raise TooLarge(f"a constant of {count:.3g} numbers")
        results = ReferenceEvaluator(model).run(None, dict(operands))
    except NotComputed:
        raise
    except Exception as error:  # of any kind, since a graph may ask for anything
        raise NotComputed(f"what cannot be computed of its constants: {error}") from None
    if not all(isinstance(array, np.ndarray | np.generic) for array in results):
        raise NotComputed("sequences and optional values")
    return [np.asarray(array) for array in results]
