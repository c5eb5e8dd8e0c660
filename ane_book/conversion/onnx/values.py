"""The types of ONNX in MIL: what a tensor is declared as, and as what it is computed.

Real numbers are computed in fp32 (coremltools makes fp16 of them when asked to), whole ones of
every width in int32, and truth as itself. Constants are held to the range of int32; sums and
products of narrow types wrap as theirs do.
"""

from dataclasses import dataclass

from ane_book.conversion.onnx.ops._common import Var, is_float, mb
import numpy as np

__all__ = ["Value", "wrapped"]

#: Operators whose results may leave the range of a narrow type.
WRAPPING = set(
    [
        "Add",
        "Sub",
        "Mul",
        "Neg",
        "Abs",
        "Sum",
        "Pow",
        "MatMul",
        "CumSum",
        "ReduceSum",
        "ReduceProd",
        "Cast",
        "Div",
    ]
)


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: known, or made by the program; and its type in ONNX."""

    data: np.ndarray | Var
    dtype: np.dtype

    @property
    def is_known(self) -> bool:
        return isinstance(self.data, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.data.shape)


def wrapped(x: Var, dtype: np.dtype, op: str) -> Var:
    """A result of a narrow type as that type has it: modulo its range."""
    if dtype.kind not in "iu" or dtype.itemsize > 2 or op not in WRAPPING or is_float(x):
        return x
    low, count = np.iinfo(dtype).min, 2 ** (8 * dtype.itemsize)
    if low == 0:
        return mb.mod(x=x, y=np.int32(count))
    return mb.add(x=mb.mod(x=mb.sub(x=x, y=np.int32(low)), y=np.int32(count)), y=np.int32(low))
