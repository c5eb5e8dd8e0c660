"""What is known of a graph when it is converted: constants, and all that is computed of them.

Exported graphs compute shapes as they go (Shape, Gather, Concat, Reshape). With the sizes of the
inputs known, all of that is, and onnx's own reference evaluator finds it. What the evaluator lacks
is found by the operator's own function (`ane_book.onnx.graph.translate`).
"""

from ane_book.onnx.evaluate import NotComputed, TooLarge, evaluate
from ane_book.onnx.graph.ops import Unsayable
from ane_book.onnx.graph.values import Value
import numpy as np

__all__ = ["NotFolded", "fold", "is_foldable"]

#: Operators that look at no more than the shape or type of these inputs.
SHAPE_ALONE = {"Shape": {0}, "Size": {0}, "EyeLike": {0}, "CastLike": {1}, "ConstantOfShape": set()}
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
RANDOM |= {"RandomUniformLike"}


class NotFolded(Unsayable):
    """The reference evaluator does not compute it; the operator's own function may."""


def is_foldable(node, inputs: list[Value | None]) -> bool:
    """Whether a node's results are known."""
    if node.op_type in RANDOM:
        return False
    looked_past = SHAPE_ALONE.get(node.op_type, set())
    return all(v is None or v.is_known or i in looked_past for i, v in enumerate(inputs))


def fold(node, inputs: list[Value | None], opset: int) -> list[np.ndarray]:
    """The node's results. Raises NotFolded, and Unsayable where they would be too large."""
    given = {
        name: value.data if value.is_known else np.broadcast_to(value.dtype.type(0), value.shape)
        for name, value in zip(node.input, inputs, strict=True)
        if value is not None
    }
    try:
        return evaluate(node, given, opset)
    except TooLarge as error:
        raise Unsayable(str(error)) from None
    except NotComputed as error:
        raise NotFolded(str(error)) from None
