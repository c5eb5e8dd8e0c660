"""Constant folding at load time: the constants of a function, decoded once.

A constant is a `const` op or an immediate value. A compressed one, the result of a `constexpr_*`
op, stays compressed until its tensor is asked for, since a product may read it as stored
(`kernels/products.py`). Expanded, it has the declared type: a half precision weight is rounded to
half even for a run in single precision, which then widens it. Constants in the weight file are
decoded once per package, for all its functions.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from mlprogram.ops import OPS
from mlprogram.package.function import Function, Operation
from mlprogram.package.values import Constant, TensorType
import torch

TORCH = {
    "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16,
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "uint8": torch.uint8, "uint16": torch.uint16, "uint32": torch.uint32,
    "uint64": torch.uint64, "int4": torch.int8, "uint1": torch.uint8, "uint2": torch.uint8,
    "uint3": torch.uint8, "uint4": torch.uint8, "uint6": torch.uint8,
}  # fmt: skip

#: Arguments that name a dtype: lifting the tensors to single precision changes "fp16" in them too.
DTYPE_ARGUMENTS = frozenset(["dtype", "output_dtype"])


def torch_dtype(dtype: str, lift: bool) -> torch.dtype:
    """The torch dtype of a MIL dtype. lift: half precision becomes single."""
    return torch.float32 if lift and dtype == "fp16" else TORCH[dtype]


@dataclass(frozen=True)
class Expansion:
    """A compressed constant: result `index` of a `constexpr_*` op."""

    operation: Operation
    index: int

    @property
    def type(self) -> TensorType:
        return self.operation.outputs[self.index][1]


Known = Constant | Expansion


class Constants:
    """The constants of one function, by name.

    lift: half precision is widened to single, with the declared values. shared: decoded values of
    all functions of a package, by keys that are equal for equal constants. preparing: a context
    that explains why a compressed constant cannot be expanded (`Failures.preparing`).
    """

    def __init__(self, function: Function, lift: bool, shared: dict, preparing: Callable):
        self.lift, self.shared, self.preparing = lift, shared, preparing
        self.named: dict[str, Known] = {}
        for operation in function.operations():
            if operation.type == "const":
                self.named[operation.outputs[0][0]] = operation.inputs["val"][0]
            elif operation.type.startswith("constexpr_"):
                for index, (name, _) in enumerate(operation.outputs):
                    self.named[name] = Expansion(operation, index)

    def find(self, item: str | Constant) -> Known | None:
        """The constant behind an op's input, or None if it is computed at run time."""
        return self.named.get(item) if isinstance(item, str) else item

    def known(self, item: str | Constant) -> Known:
        """The constant behind an op's input; raises LookupError if it is computed at run time."""
        constant = self.find(item)
        if constant is None:
            raise LookupError(f"{item!r} is computed at run time")
        return constant

    def dtype(self, type_: TensorType) -> torch.dtype:
        return torch_dtype(type_.dtype, self.lift)

    def operand(self, value: Known) -> torch.Tensor | str:
        """A constant as an op's operand: a dense tensor, or a string."""
        if isinstance(value, Constant) and value.type.dtype == "string":
            return value.value
        return self.tensor(value)

    def tensor(self, value: Known) -> torch.Tensor:
        """A numeric constant as a dense tensor in the precision of the run."""
        if isinstance(value, Expansion):
            with self.preparing(value.operation):
                return self._expanded(value)
        if not value.blob:
            return self.stored(value).to(self.dtype(value.type))
        key = (value.blob, value.type, self.lift)
        if key not in self.shared:
            self.shared[key] = self.stored(value).to(self.dtype(value.type))
        return self.shared[key]

    def stored(self, value: Constant) -> torch.Tensor:
        """A constant as stored: a view of the mapped weight file, or a copy of an immediate value.

        Sub-byte values are unpacked to one per byte.
        """
        array = value.array()
        if not array.flags.writeable:  # torch wants memory that it may own
            array = array.copy()
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if value.type.dtype == "bf16" else tensor

    def plain(self, key: str, value: Known) -> Any:
        """A constant as the Python value of the argument `key`: a scalar, a string or a list."""
        if isinstance(value, Expansion):
            return self.tensor(value).tolist()
        if self.lift and key in DTYPE_ARGUMENTS and value.value == "fp16":
            return "fp32"
        return value.value

    def identity(self, value: Known | None) -> Hashable:
        """A key that is equal for equal constants: their op, place in the file, or bytes."""
        if value is None:
            return None
        if not isinstance(value, Expansion):
            return value.type, value.blob or value.array().tobytes()
        parts = [
            (key, *(self.identity(self.find(item)) for item in items))
            for key, items in value.operation.inputs.items()
        ]
        return value.operation.type, self.lift, *parts

    def _expanded(self, value: Expansion) -> torch.Tensor:
        """Expand a compressed constant, and check that it has its declared type."""
        found = self._expand(value.operation)[value.index]
        if found.shape != value.type.shape or found.dtype != self.dtype(value.type):
            raise ValueError(f"it makes {found.dtype} {[*found.shape]}, not {value.type}")
        return found

    def _expand(self, operation: Operation) -> tuple[torch.Tensor, ...]:
        """Compute the results of a `constexpr_*` op."""
        key = self.identity(Expansion(operation, 0))
        if key not in self.shared:
            op = OPS[operation.type]
            given: dict[str, Any] = {}
            for name, (item,) in operation.inputs.items():
                value = self.known(item)
                if name not in op.static:
                    given[name] = self._declared(value)
                elif isinstance(value, Constant):
                    given[name] = value.value
                else:
                    raise ValueError(f"its {name} is itself compressed")
            found = op.function(**given)
            found = found if isinstance(found, tuple) else (found,)
            half = torch.float16 if self.lift else None
            self.shared[key] = tuple(t.float() if t.dtype == half else t for t in found)
        return self.shared[key]

    def _declared(self, value: Known) -> torch.Tensor:
        """A constant in its declared dtype, whatever the precision of the run."""
        if isinstance(value, Expansion):
            return self.tensor(value).to(TORCH[value.type.dtype])  # exact: it was widened from it
        return self.stored(value)
