"""Write ops into the protobuf of a function: new ones in the place of one that is there.

Format: `mlmodel/format/MIL.proto` of apple/coremltools.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlprogram.package.files import proto
from mlprogram.package.function import Operation
from mlprogram.package.messages import immediate, value_type
from mlprogram.package.values import TensorType
import numpy as np

#: MIL's dtype of a constant -> numpy's.
STORED = {
    "bool": np.bool_, "int32": np.int32, "fp32": np.float32, "fp16": np.float16, "string": np.str_,
}  # fmt: skip
KINDS = {"b": "bool", "i": "int32", "U": "string"}  # of numpy's dtypes; floats follow the op


@dataclass(frozen=True)
class Typed:
    """A value of the function: its name and its declared type."""

    name: str
    type: TensorType


class Maker:
    """Makes the ops that take an op's place.

    stem: what the names of new values begin with. taken: names of the function's values, to which
    the new ones are added. made: the new ops, constants among them, in program order.
    """

    def __init__(self, stem: str, taken: set[str]):
        self._stem, self._taken = stem, taken
        self.made: list[Any] = []

    def op(
        self,
        kind: str,
        inputs: Mapping[str, Any],
        dtype: str | None = None,
        shape: tuple[int | None, ...] | None = None,
    ) -> Typed:
        """Add an op of one output.

        inputs: `Typed`s, lists of them, or constants: numbers and texts of Python, arrays. A float
        has the dtype of the output, or of the op's first value where that is no float. dtype,
        shape: of the output; by default the dtype of the first value, and the shape to which all
        values broadcast.
        """
        values = [item for item in inputs.values() if isinstance(item, Typed)]
        first = values[0].type.dtype if values else "fp32"
        floats = dtype if dtype in ("fp16", "fp32") else first
        message = proto("MIL_pb2").Operation(type=kind)
        for key, item in inputs.items():
            for one in item if isinstance(item, list) and isinstance(item[0], Typed) else [item]:
                value = one if isinstance(one, Typed) else self.constant(one, floats)
                message.inputs[key].arguments.add().name = value.name
        shape = broadcast(value.type.shape for value in values) if shape is None else shape
        return self._add(message, TensorType(dtype or first, shape))

    def constant(self, value: Any, floats: str = "fp32") -> Typed:
        """Add a constant. floats: the dtype of one that is a float."""
        array = np.asarray(value)
        dtype = KINDS.get(array.dtype.kind, floats)
        array = array.astype(STORED[dtype])
        message = proto("MIL_pb2").Operation(type="const")
        message.attributes["val"].CopyFrom(immediate(array))
        return self._add(message, TensorType(dtype, array.shape))

    def finish(self, value: Typed, operation: Operation) -> list[Any]:
        """The ops, of which that of `value` now gives what `operation` gave, by its name.

        Raises ValueError where its type is another.
        """
        ((name, declared),) = operation.outputs
        last = next((one for one in self.made if one.outputs[0].name == value.name), None)
        if last is None or value.type != declared:
            raise ValueError(f"{value.type} in the place of {declared}")
        last.outputs[0].name = name
        last.attributes["name"].CopyFrom(immediate(name))
        return self.made

    def _add(self, message, type_: TensorType) -> Typed:
        number = len(self.made)
        while (name := f"{self._stem}_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        message.outputs.add(name=name, type=value_type(type_.dtype, type_.shape))
        message.attributes["name"].CopyFrom(immediate(name))
        self.made.append(message)
        return Typed(name, type_)


def broadcast(shapes: Iterable[tuple[int | None, ...]]) -> tuple[int | None, ...]:
    """The shape to which shapes broadcast; a flexible size (None) gives way to a fixed one."""
    found: list[int | None] = []
    for shape in shapes:
        found[:0] = [1] * (len(shape) - len(found))
        for axis, size in enumerate(reversed(shape), 1):
            if found[-axis] == 1 or (found[-axis] is None and size not in (1, None)):
                found[-axis] = size
    return tuple(found)


# --- blocks -------------------------------------------------------------------------------------


def blocks_of(function) -> Iterator[Any]:
    """The block of a function that is in use, and those nested in it."""
    blocks = [function.block_specializations[function.opset]]
    for block in blocks:
        yield block
        blocks += [nested for operation in block.operations for nested in operation.blocks]


def replace(function, new: Mapping[str, list[Any]]) -> None:
    """Put ops in the place of others, and drop the ops that nothing reads any more.

    new: by the name of an op's first output.
    """
    before = {id_ for id_, _ in _unread(function)}
    for block in blocks_of(function):
        operations = [*block.operations]
        del block.operations[:]
        for operation in operations:
            name = operation.outputs[0].name if operation.outputs else ""
            block.operations.extend(new.get(name, [operation]))
    while dead := [(name, block) for name, block in _unread(function) if name not in before]:
        names = {name for name, _ in dead}
        for block in blocks_of(function):
            kept = [o for o in block.operations if not (o.outputs and o.outputs[0].name in names)]
            del block.operations[:]
            block.operations.extend(kept)


def _unread(function) -> Iterator[tuple[str, Any]]:
    """The ops (by their first output) that no op and no block's output reads, and their blocks."""
    read = {name for block in blocks_of(function) for name in block.outputs}
    for block in blocks_of(function):
        for operation in block.operations:
            read |= names_read(operation)
    for block in blocks_of(function):
        for operation in block.operations:
            names = [output.name for output in operation.outputs]
            if names and read.isdisjoint(names):
                yield names[0], block


def names_read(operation) -> set[str]:
    """The values that an op's inputs name."""
    arguments = (a for argument in operation.inputs.values() for a in argument.arguments)
    return {a.name for a in arguments if a.WhichOneof("binding") == "name"}


def slice_of(
    operations: Iterable[Any], outputs: Collection[str], inputs: Collection[str]
) -> list[Any]:
    """The ops, in order, that compute `outputs` from `inputs` and from constants.

    Raises ValueError where they need more than these.
    """
    ordered, wanted, kept = [*operations], {*outputs}, []
    for operation in reversed(ordered):
        names = {output.name for output in operation.outputs} - {*inputs}
        if names & wanted:
            kept.append(operation)
            wanted = (wanted - names) | names_read(operation)
    if missing := wanted - {*inputs}:
        raise ValueError(f"{min(missing)} is computed from more than {', '.join(inputs)}")
    return kept[::-1]
