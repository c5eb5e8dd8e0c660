"""What is known of a graph when it is converted: constants, and all that is computed of them.

Exported graphs compute shapes as they go (Shape, Gather, Concat, Reshape). With the sizes of the
inputs known, all of that is, and onnx's own reference evaluator finds it.
"""

from ane_book.conversion.onnx.ops import Unsayable
from ane_book.conversion.onnx.values import Value
import numpy as np

__all__ = ["fold", "is_foldable"]

#: Operators that look at no more than the shape or type of these inputs.
SHAPE_ALONE = {"Shape": {0}, "Size": {0}, "EyeLike": {0}, "CastLike": {1}, "ConstantOfShape": set()}
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
RANDOM |= {"RandomUniformLike"}
LARGEST = 2**30  # bytes that are made of less


def is_foldable(node, inputs: list[Value | None]) -> bool:
    """Whether a node's results are known."""
    if node.op_type in RANDOM:
        return False
    looked_past = SHAPE_ALONE.get(node.op_type, set())
    return all(v is None or v.is_known or i in looked_past for i, v in enumerate(inputs))


def fold(node, inputs: list[Value | None], opset: int) -> list[np.ndarray]:
    """The node's results. Raises Unsayable."""
    from onnx import TypeProto, helper
    from onnx.reference import ReferenceEvaluator

    given = {
        name: value.data if value.is_known else np.broadcast_to(value.dtype.type(0), value.shape)
        for name, value in zip(node.input, inputs, strict=True)
        if value is not None
    }
    infos = [helper.make_value_info(name, TypeProto()) for name in given]
    results = [helper.make_value_info(name, TypeProto()) for name in node.output if name]
    graph = helper.make_graph([node], "fold", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        _check_size(node, given)
        found = ReferenceEvaluator(model).run(None, given)
    except Unsayable:
        raise
    except Exception as error:  # of whatever kind: a graph may ask anything of it
        raise Unsayable(f"what cannot be computed of its constants: {error}") from None
    if not all(isinstance(array, np.ndarray | np.generic) for array in found):
        raise Unsayable("sequences and optional values")
    return [np.asarray(array) for array in found]


def _check_size(node, given: dict[str, np.ndarray]) -> None:
    """Nothing small may ask for more memory than there is."""
    arrays = list(given.values())
    sizes = {
        "ConstantOfShape": lambda shape: shape,
        "Expand": lambda x, shape: np.broadcast_shapes(x.shape, tuple(int(s) for s in shape)),
        "Tile": lambda x, repeats: [int(a) * int(b) for a, b in zip(x.shape, repeats, strict=True)],
        "Range": lambda start, limit, delta: [abs(float((limit - start) / delta))],
        "OneHot": lambda places, depth, values: [places.size, int(np.asarray(depth).flat[0])],
        "Pad": lambda x, pads, *rest: [x.size, *(1 + np.abs(pads.astype(np.float64)))],
    }
    if node.op_type not in sizes:
        return
    count = 1.0
    for size in sizes[node.op_type](*arrays):
        count *= float(size)
    if 8 * count > LARGEST:
        raise Unsayable(f"a constant of {count:.3g} numbers")
