"""The records of a function of an ML Program: `Function`, `Block`, `Operation`."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlprogram.package.values import TensorType


@dataclass
class Operation:
    """One op: inputs are names of values or constants, in order; outputs have declared types."""

    type: str
    name: str
    inputs: dict[str, list]  # each list holds str (a value's name) or Constant
    outputs: list[tuple[str, TensorType]]
    blocks: list["Block"]

    @property
    def is_constant(self) -> bool:
        """Whether its results are known at load time: it is a `const` or `constexpr_*` op."""
        return self.type == "const" or self.type.startswith("constexpr_")


@dataclass
class Block:
    inputs: list[tuple[str, TensorType]]
    operations: list[Operation]
    outputs: list[str]


@dataclass
class Function:
    name: str
    opset: str
    inputs: dict[str, TensorType]
    states: dict[str, TensorType]
    block: Block

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The declared type of each output."""
        types = dict(self.inputs) | self.states
        for operation in self.block.operations:
            types.update(operation.outputs)
        return {name: types[name] for name in self.block.outputs}

    def operations(self) -> Iterator[Operation]:
        """Every op, including those in nested blocks."""
        stack = [self.block]
        while stack:
            block = stack.pop()
            for operation in block.operations:
                yield operation
                stack.extend(operation.blocks)
