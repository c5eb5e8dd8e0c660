"""`Value`, a tensor of the graph during translation: its ONNX type, and its constant or MIL value.

Real numbers are computed in fp32 (which coremltools may turn to fp16), integers of every width in
int32, and booleans as such. Integer constants have to fit int32; sums and products of narrow types
wrap around as in ONNX.

Exported graphs compute shapes at run time (Shape, Gather, Concat, Reshape). With known input shapes
all of that is constant, and `mlprogram.onnx.evaluate` folds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import re

from mlprogram.onnx.graph.ops._common import Tensor, is_float, mb
import numpy as np
from onnx import NodeProto

#: Operators whose results may exceed the range of a narrow type.
WRAPPING = {
    "Abs", "Add", "BitShift", "Cast", "CastLike", "CumSum", "Div", "MatMul", "Mul", "Neg", "Pow",
    "ReduceProd", "ReduceSum", "Sub", "Sum",
}  # fmt: skip
#: Operators that use only the shape or type of these inputs.
SHAPE_ALONE = {"Shape": {0}, "Size": {0}, "EyeLike": {0}, "CastLike": {1}}
RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: a constant array or a MIL `Var`, and its type in ONNX."""

    data: Tensor
    dtype: np.dtype
    origins: frozenset[str] = frozenset()  # the graph inputs it depends on; empty for a constant

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
        """The operand for folding: the constant, or zeros if the node uses only the shape."""
        return self.data if self.is_known else np.broadcast_to(self.dtype.type(0), self.shape)


def is_foldable(node: NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Whether a node can be folded: it uses only constants of its inputs, and no random numbers."""
    looked_past = SHAPE_ALONE.get(node.op_type, set())
    known = all(v is None or v.is_known or i in looked_past for i, v in enumerate(inputs))
    return known and node.op_type not in RANDOM


def wrapped(x: Tensor, dtype: np.dtype, op: str) -> Tensor:
    """Wrap an int32 result around the range of its narrow integer type."""
    narrow = re.fullmatch(r"(u?int)(\d+)", dtype.name)
    if narrow is None or int(narrow[2]) > 16 or op not in WRAPPING or is_float(x):
        return x
    count = 2 ** int(narrow[2])
    if narrow[1] == "uint":
        return _modulo(x, count)
    low = np.int32(-count // 2)
    return mb.add(x=_modulo(mb.sub(x=x, y=low), count), y=low)


def _modulo(x: Tensor, count: int) -> Tensor:
    """x modulo a positive number: from 0 to below it. On a Mac `mod` of a negative number is itself
    negative, so the second one is given none."""
    size = np.int32(count)
    return mb.mod(x=mb.add(x=mb.mod(x=x, y=size), y=size), y=size)
