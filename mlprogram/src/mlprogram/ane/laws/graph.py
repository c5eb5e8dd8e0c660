"""The def-use graph of one function of a package, which rules and placement read.

It holds what the program declares: ops in order, types, small constants, the forms of compressed
weights. No weight is decompressed, and torch is not needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mlprogram.analysis.ranges import WHOLE, Interval
from mlprogram.analysis.touched import Facts
from mlprogram.ane.laws.rule import Severity
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant, TensorType

FLOATS = frozenset(["fp16", "fp32", "fp64", "bf16"])

#: Ops that only change the shape.
VIEWS = frozenset(["reshape", "transpose", "squeeze", "expand_dims", "reshape_like"])

#: Ops with weights -> the input that is the weight, and its axes of output and input channels.
WEIGHTED = {
    "conv": ("weight", 0, 1),
    "conv_transpose": ("weight", 1, 0),
    "linear": ("weight", 0, 1),
}


@dataclass(frozen=True)
class Seen:
    """What a rule found: the op (None for the whole function), and how it breaks the rule.

    severity: replaces the rule's own severity for this op, if not None.
    """

    text: str
    operation: Operation | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class ConstantWeight:
    """The constant operand of a product: its type, its axes of channels, and how it is stored."""

    type: TensorType
    outputs: int  # axis of the output channels
    inputs: int
    compressed: Operation | None  # the `constexpr_*` op that decompresses it

    @property
    def depth(self) -> int:
        """Input channels: the terms of each sum, without those of a kernel."""
        return self.type.shape[self.inputs] or 1


class ProgramGraph:
    """The def-use graph of one function.

    every: its ops in program order, those of nested blocks after the op that has them. operations:
    the same without constants. outputs: of the function. features: the inputs' descriptions in the
    model's specification, by name.
    """

    def __init__(self, package: Package, function: Function):
        self.package, self.function = package, function
        self.types: dict[str, TensorType] = {**function.inputs, **function.states}
        self.makers: dict[str, Operation] = {}
        self.readers: dict[str, list[Operation]] = {}
        self.every = list(_in_order(function.block, self.types))
        for operation in self.every:
            for name, type_ in operation.outputs:
                self.types[name], self.makers[name] = type_, operation
            for item in (item for items in operation.inputs.values() for item in items):
                if isinstance(item, str):
                    self.readers.setdefault(item, []).append(operation)
        self.operations = [operation for operation in self.every if not operation.is_constant]
        self.places = {id(operation): n for n, operation in enumerate(self.operations, 1)}
        self.outputs = {name: self.types[name] for name in function.block.outputs}
        self.features = package.described(function.name, "input")

    @cached_property
    def facts(self) -> Facts:
        """Between which numbers its values lie, and what else is known without an input."""
        return _Unwrapped(self.function)

    def item(self, operation: Operation, key: str) -> str | Constant | None:
        """The value of an input; None if it is absent."""
        items = operation.inputs.get(key)
        return items[0] if items else None

    def maker(self, item: str | Constant | None) -> Operation | None:
        return self.makers.get(item) if isinstance(item, str) else None

    def type(self, item: str | Constant | None) -> TensorType | None:
        return item.type if isinstance(item, Constant) else self.types.get(item or "")

    def constant(self, item: str | Constant | None) -> Constant | None:
        """The constant behind an input; None if it is computed, compressed, or not there."""
        return None if item is None else self.facts.constant(item)

    def fixed(self, item: str | Constant | None) -> bool:
        """Whether an input is constant, compressed or not."""
        maker = self.maker(item)
        return isinstance(item, Constant) or (maker is not None and maker.is_constant)

    def value(self, operation: Operation, key: str, default=None):
        """A small constant input as plain Python; `default` if it is absent or computed."""
        constant = self.constant(self.item(operation, key))
        return default if constant is None else constant.value

    def computed(self, operation: Operation) -> list[str]:
        """The inputs of an op that are not constant."""
        items = (item for items in operation.inputs.values() for item in items)
        return [item for item in items if isinstance(item, str) and not self.fixed(item)]

    def weight(self, operation: Operation) -> ConstantWeight | None:
        """The weight of a product with a constant; None for every other op."""
        if operation.type == "matmul":
            key, across = "y", bool(self.value(operation, "transpose_y", False))
            outputs, inputs = (-2, -1) if across else (-1, -2)
        elif operation.type in WEIGHTED:
            key, outputs, inputs = WEIGHTED[operation.type]
        else:
            return None
        item = self.item(operation, key)
        type_ = self.type(item)
        if not self.fixed(item) or type_ is None or len(type_.shape) < 2:
            return None
        maker = self.maker(item)
        compressed = maker if maker is not None and maker.type != "const" else None
        rank = len(type_.shape)
        return ConstantWeight(type_, outputs % rank, inputs % rank, compressed)

    def constants(self) -> Iterator[tuple[Operation, Constant]]:
        """Every constant that is there and its op, including the parts of compressed weights."""
        for operation in self.every:
            for items in operation.inputs.values():
                for item in items:
                    if isinstance(item, Constant) and item.is_there:
                        yield operation, item

    def compressed(self) -> Iterator[Operation]:
        """The `constexpr_*` ops."""
        for operation in self.every:
            if operation.type.startswith("constexpr_"):
                yield operation


class _Unwrapped(Facts):
    """Facts of values as they are meant: whole numbers do not wrap around."""

    def _fitting(self, found: Interval, type_: TensorType) -> Interval:
        if type_.dtype not in WHOLE:
            return super()._fitting(found, type_)
        low, high = WHOLE[type_.dtype]
        return max(found[0], low), min(found[1], high)


def _in_order(block: Block, types: dict[str, TensorType]) -> Iterator[Operation]:
    types.update(block.inputs)
    for operation in block.operations:
        yield operation
        for nested in operation.blocks:
            yield from _in_order(nested, types)


def sizes(shape: tuple[int | None, ...]) -> str:
    """(1, 3, None) -> "1 x 3 x ?"."""
    return " x ".join("?" if size is None else f"{size:,}" for size in shape)
