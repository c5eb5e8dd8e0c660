"""The types of ONNX in MIL: what a tensor is declared as, and as what it is computed.

Real numbers are computed in fp32 (coremltools makes fp16 of them when asked to), whole ones of
every width in int32, and truth as itself. Constants are held to the range of int32; sums and
products of narrow types wrap as theirs do.
"""

from dataclasses import dataclass
import re

from ane_book.onnx.graph.ops._common import Var, is_float, mb
import numpy as np

__all__ = ["Value", "wrapped"]

#: Operators whose results may leave the range of a narrow type.
WRAPPING = {
    "Abs", "Add", "Cast", "CastLike", "CumSum", "Div", "MatMul", "Mul", "Neg", "Pow", "ReduceProd",
    "ReduceSum", "Sub", "Sum",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: known, or made by the program; and its type in ONNX."""

    data: np.ndarray | Var
    dtype: np.dtype
    origins: frozenset[str] = frozenset()  # the graph's inputs that it rests on; none where known

    @property
    def is_known(self) -> bool:
        return isinstance(self.data, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.data.shape)


def wrapped(x: Var, dtype: np.dtype, op: str) -> Var:
    """A result of a narrow type as that type has it: modulo its range."""
    kind, bits = re.fullmatch(r"(u?int|.*?)(\d*)", dtype.name).groups()
    if kind not in ("int", "uint") or int(bits) > 16 or op not in WRAPPING or is_float(x):
        return x
    count = 2 ** int(bits)
    if kind == "uint":
        return mb.mod(x=x, y=np.int32(count))
    low = np.int32(-count // 2)
    return mb.add(x=mb.mod(x=mb.sub(x=x, y=low), y=np.int32(count)), y=low)
