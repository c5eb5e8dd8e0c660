"""Constant folding of a node with known operands, by onnx's own reference evaluator."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
from onnx import ModelProto, NodeProto, TypeProto, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

LARGEST = 2**30  # the most bytes of a result that is larger than its operands
SMALL = 64  # numbers of an operand that may be sizes
#: With more than 64 elements onnx.reference takes one element of a row, and of the wrong axis; the
#: others, as all that move a window, it computes one number at a time, or with large matrices.
LEFT_OUT = {"DFT", "GatherElements", "GridSample", "Resize", "RoiAlign", "STFT"}

#: Operators whose result onnx does not infer -> its size. It counts in int64, which wraps, or dies.
SIZES: dict[str, Callable[..., int]] = {
    "GatherND": lambda x, at: at.size // at.shape[-1] * prod(x.shape[at.shape[-1] :]),
    "LayerNormalization": lambda x, *others: x.size,
    "Range": lambda start, limit, delta: abs(int((limit.item() - start.item()) / delta.item())),
}


class NotComputed(Exception):
    """A node cannot be folded; the message says why."""


class TooLarge(NotComputed):
    """The result would be larger than LARGEST."""


def evaluate(node: NodeProto, operands: Mapping[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """Compute a node's results from its operands by name. Raises NotComputed."""
    infos = [helper.make_value_info(name, TypeProto()) for name in operands]
    outputs = [helper.make_value_info(name, TypeProto()) for name in node.output if name]
    graph = helper.make_graph([node], "fold", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        moves = "kernel_shape" in defs.get_schema(node.op_type, opset, "").attributes
        if moves or node.op_type in LEFT_OUT:
            raise NotImplementedError(f"onnx's own {node.op_type} is wrong or slow for some shapes")
        count = _size(model, operands)
        stored = sum(a.size for a in operands.values() if any(a.strides))  # not of zeros repeated
        if 8 * count > max(LARGEST, 8 * stored):
            raise TooLarge(f"a constant of {count:.3g} numbers")
        results = ReferenceEvaluator(model).run(None, dict(operands))
    except NotComputed:
        raise
    except Exception as error:  # of any kind, since a graph may ask for anything
        raise NotComputed(f"what cannot be computed of its constants: {error}") from None
    if not all(isinstance(array, np.ndarray | np.generic) for array in results):
        raise NotComputed("sequences and optional values")
    return [np.asarray(array) for array in results]


def _size(model: ModelProto, operands: Mapping[str, np.ndarray]) -> int:
    """How many numbers the largest result has, as far as onnx infers it."""
    if size := SIZES.get(model.graph.node[0].op_type):
        return size(*operands.values())
    typed = ModelProto()
    typed.CopyFrom(model)
    del typed.graph.input[:]
    for name, array in operands.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        typed.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
        if array.size <= SMALL:
            typed.graph.initializer.append(numpy_helper.from_array(np.array(array), name))
    results = shape_inference.infer_shapes(typed).graph.output
    sizes = [[axis.dim_value for axis in r.type.tensor_type.shape.dim] for r in results]
    return max((abs(prod(map(int, size))) for size in sizes), default=0)
