"""A tensor of the graph in the program: what it is declared as, and as what it is computed.

Real numbers are computed in fp32 (coremltools makes fp16 of them when asked to), whole ones of
every width in int32, and truth as itself. Constants are held to the range of int32; sums and
products of narrow types wrap as theirs do.

Exported graphs compute shapes as they go (Shape, Gather, Concat, Reshape). With the sizes of the
inputs known, all of that is, and `ane_book.onnx.evaluate` finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import re
from typing import TYPE_CHECKING

from ane_book.onnx.graph.ops._common import Tensor, is_float, mb
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto

__all__ = ["Value", "is_foldable", "wrapped"]

#: Operators whose results may leave the range of a narrow type.
WRAPPING = {
    "Abs", "Add", "Cast", "CastLike", "CumSum", "Div", "MatMul", "Mul", "Neg", "Pow", "ReduceProd",
    "ReduceSum", "Sub", "Sum",
}  # fmt: skip
#: Operators that look at no more than the shape or type of these inputs.
SHAPE_ALONE = {"Shape": {0}, "Size": {0}, "EyeLike": {0}, "CastLike": {1}}
RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: known, or made by the program; and its type in ONNX."""

    data: Tensor
    dtype: np.dtype
    origins: frozenset[str] = frozenset()  # the graph's inputs that it rests on; none where known

    @classmethod
    def known(cls, array: np.ndarray) -> "Value":
        array = np.asarray(array)
        return cls(array, array.dtype)

    @property
    def is_known(self) -> bool:
        return isinstance(self.data, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.data.shape)

    @property
    def operand(self) -> np.ndarray:
        """What a node that is folded is given: zeros for what it sees no more than the shape of."""
        return self.data if self.is_known else np.broadcast_to(self.dtype.type(0), self.shape)


def is_foldable(node: "NodeProto", inputs: Sequence[Value | None]) -> bool:
    """Whether a node's results are known."""
    looked_past = SHAPE_ALONE.get(node.op_type, set())
    known = all(v is None or v.is_known or i in looked_past for i, v in enumerate(inputs))
    return known and node.op_type not in RANDOM


def wrapped(x: Tensor, dtype: np.dtype, op: str) -> Tensor:
    """A result of a narrow type as that type has it: modulo its range."""
    narrow = re.fullmatch(r"(u?int)(\d+)", dtype.name)
    if narrow is None or int(narrow[2]) > 16 or op not in WRAPPING or is_float(x):
        return x
    count = 2 ** int(narrow[2])
    if narrow[1] == "uint":
        return mb.mod(x=x, y=np.int32(count))
    low = np.int32(-count // 2)
    return mb.add(x=mb.mod(x=mb.sub(x=x, y=low), y=np.int32(count)), y=low)
