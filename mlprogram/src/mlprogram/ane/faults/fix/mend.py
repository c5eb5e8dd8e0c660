"""`Mend`: what an op with a fault was meant to give, and the ops that give it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlprogram.ane.faults.fix.edit import Maker, Typed
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.ops import OPS
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant, TensorType
import numpy as np
import torch

#: Numbers at which ops have gone wrong: zeros, ones, halves, small and large ones of fp16.
FINITE = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, 10.0, -10.0, 100.0, -100.0, 1e-3, -1e-3,
          3e4, -3e4)  # fmt: skip


class Unmended(Exception):
    """An op cannot be rewritten exactly; the message says why, as a clause."""


@dataclass(frozen=True)
class Mend:
    """The mending of one op, or of the ops that end with it.

    operation: the op whose output is computed anew. inputs: the values that it is computed from.
    meant: torch's own computation of it on tensors of these, in their order; floats are in float32.
    operations: the ops that take its place, in protobuf. values: by input, those that it is tried
    on where not any number is allowed. flags: those that are 0 or 1; the function's inputs that
    they are computed from are drawn so too. least: what the new ops give in place of anything
    less, as the ops that read it allow. ulps: how many steps of its dtype the new numbers may be
    away, of each element, but of none below `size`, or of the largest with `sums`.
    """

    operation: Operation
    inputs: tuple[Typed, ...]
    meant: Callable[..., Any]
    operations: list[Any]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    least: float = -np.inf
    ulps: float = 4
    size: float = 0.0
    sums: bool = False


class At:
    """The op that is to be mended, its function, and the maker of the ops that take its place."""

    def __init__(self, graph: ProgramGraph, operation: Operation, make: Maker):
        self.graph, self.operation, self.make = graph, operation, make
        self._unnamed: dict[str, Constant] = {}  # constants that the program has in an op itself

    def near(self, operation: Operation) -> "At":
        """The same for another op of the function."""
        maker = Maker(f"{operation.name}_mended", {*self.graph.types})
        return At(self.graph, operation, maker)

    @property
    def type(self) -> TensorType:
        """The declared type of the op's output."""
        return self.operation.outputs[0][1]

    def value(self, key: str, operation: Operation | None = None) -> Typed:
        """An input of the op, or of another one; a constant without a name gets one."""
        operation = operation or self.operation
        item = self.graph.item(operation, key)
        if isinstance(item, Constant):
            value = self.make.constant(item.array(), item.type.dtype)
            self._unnamed[value.name] = item
            return value
        type_ = self.graph.type(item)
        if item is None or type_ is None:
            raise Unmended(f"its {operation.type} has no {key}")
        return Typed(item, type_)

    def again(self, **changed: Any) -> Typed:
        """The same op with other inputs; None leaves one away."""
        given: dict[str, Any] = {key: self.value(key) for key in self.operation.inputs}
        given |= changed
        given = {key: item for key, item in given.items() if item is not None}
        return self.make.op(self.operation.type, given, self.type.dtype, self.type.shape)

    def as_described(
        self, result: Typed, instead: Mapping[str, np.ndarray] | None = None, **how: Any
    ) -> Mend:
        """The mending of an op that is meant as it is described, which the executor computes.

        instead: constants that are meant in the place of those that there are.
        """
        op, keys = OPS[self.operation.type], [*self.operation.inputs]
        fixed: dict[str, Any] = {key: self.setting(key) for key in keys if key in op.static}
        fixed |= {key: torch.from_numpy(array) for key, array in (instead or {}).items()}
        tensors = [key for key in keys if key not in fixed]

        def meant(*given):
            return op.function(**dict(zip(tensors, given, strict=True)), **fixed)

        return self.mend(result, [self.value(key) for key in tensors], meant, **how)

    def maker(self, key: str, operation: Operation) -> Operation:
        """The op that makes an input of another one."""
        made = self.graph.maker(self.graph.item(operation, key))
        if made is None:
            raise Unmended(f"its {operation.type} is of a function's input")
        return made

    def back_to(self, kind: str, most: int) -> Operation:
        """The nearest op of a kind, among this one and its makers, `most` steps back."""
        found = [self.operation]
        for _ in range(most + 1):
            if named := [operation for operation in found if operation.type == kind]:
                return named[0]
            names = [name for operation in found for name in self.graph.computed(operation)]
            found = [self.graph.makers[name] for name in names if name in self.graph.makers]
        raise Unmended(f"there is no {kind} where one was looked for")

    def reader(self, kind: str) -> Operation:
        """The one op that reads this one's output, of a kind."""
        ((name, _),) = self.operation.outputs
        readers = self.graph.readers.get(name, [])
        if [reader.type for reader in readers] != [kind] or name in self.graph.outputs:
            raise Unmended(f"its {self.operation.type} is read by more than one {kind}")
        return readers[0]

    def constant(self, value: Typed) -> Constant | None:
        """The constant behind a value; None if it is computed or compressed."""
        return self._unnamed.get(value.name) or self.graph.constant(value.name)

    def array(self, key: str) -> np.ndarray | None:
        """A constant input of the op; None if it is absent or computed."""
        constant = self.graph.constant(self.graph.item(self.operation, key))
        return None if constant is None else constant.array()

    def setting(self, key: str, default: Any = None, operation: Operation | None = None) -> Any:
        """A small constant input as plain Python. Raises Unmended for one that is computed."""
        operation = operation or self.operation
        item = self.graph.item(operation, key)
        if item is None:
            return default
        if self.graph.constant(item) is None:
            raise Unmended(f"the {key} of its {operation.type} is computed")
        return self.graph.value(operation, key)

    def mend(self, result: Typed, inputs: Sequence[Typed], meant: Callable, **how: Any) -> Mend:
        """The mending that gives `result` in the op's place; see `Mend`.

        inputs: those of `meant`; constants among them are given to it here.
        """
        try:
            made = self.make.finish(result, self.operation)
        except ValueError as error:
            raise Unmended(f"the rewrite would give {error}") from None
        names = [value.name for value in inputs]
        known = {value.name: self.constant(value) for value in inputs}
        computed = {value.name: value for value in inputs if known[value.name] is None}
        if not computed:
            raise Unmended("it is computed of constants alone")

        def with_constants(*tensors):
            given = dict(zip(computed, tensors, strict=True))
            given |= {name: _tensor(c) for name, c in known.items() if c is not None}
            return meant(*(given[name] for name in names))

        return Mend(self.operation, tuple(computed.values()), with_constants, made, **how)


def _tensor(constant: Constant):
    """A constant as a tensor, floats in float32."""
    array = constant.array()
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else array.dtype))


#: What mends one fault, called with the op that it was found at; raises Unmended where it cannot.
Rewrite = Callable[[At], Mend | list[Mend]]
