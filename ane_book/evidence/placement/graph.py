"""A function of an ML Program as the list of ops that Core ML places.

Constants are not placed: a `const` and a `constexpr_*` belong to the op that reads them, and count
with the bytes that they take in the file. No weight is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from ane_book.mil.package.function import Block, Function, Operation
from ane_book.mil.package.values import Constant, TensorType

__all__ = ["BLOCKS", "BYTES", "Op", "bytes_of", "elements", "read_ops"]

BLOCKS = "blocks"  # a constant whose scales change along its input channels
SMALL = 64  # elements: constants up to this size are read as attributes, such as axes and pads

#: Bytes of one element in memory; what is packed in less is not computed with as such.
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int16": 2, "uint16": 2, "int32": 4,
         "uint32": 4, "int64": 8, "uint64": 8}  # fmt: skip


@dataclass(frozen=True)
class Op:
    """An op as placement sees it.

    inputs: the types of the values that it computes with, by argument; sources: their names.
    constants: the types of its constants, by argument; attributes: the values of the small ones.
    weight_bytes: what its constants take in the file. depth: 0, or more in a block of another op.
    """

    type: str
    name: str
    inputs: dict[str, tuple[TensorType, ...]]
    outputs: tuple[TensorType, ...]
    constants: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    weight_bytes: int = 0
    compressed: frozenset[str] = frozenset()  # types of the `constexpr_*` behind it, or BLOCKS
    depth: int = 0
    unread: frozenset[int] = frozenset()  # outputs that nobody reads, such as a topk's indices

    @property
    def values(self) -> list[TensorType]:
        """The types of the values that the op reads, and of those that others read of it."""
        written = [t for i, t in enumerate(self.outputs) if i not in self.unread]
        return [t for types in self.inputs.values() for t in types] + written

    @property
    def operands(self) -> list[tuple[str, TensorType]]:
        """Argument and type of everything that it reads, computed values before constants."""
        both = (*self.inputs.items(), *self.constants.items())
        return [(key, type_) for key, types in both for type_ in types]

    @property
    def flexible(self) -> bool:
        """Whether a size is known only when the op runs."""
        return any(None in type_.shape for type_ in self.values)

    def numbers(self, name: str) -> list[int]:
        """A constant of one or more positive whole numbers; [] where it is none."""
        value = self.attributes.get(name)
        values = value if isinstance(value, list) else [value]
        return values if all(isinstance(v, int) and v > 0 for v in values) else []

    def operand(self, *names: str) -> TensorType | None:
        """The type of the first of these arguments that the op has, computed or constant."""
        for name in names:
            types = self.inputs.get(name) or self.constants.get(name)
            if types:
                return types[0]
        return None


def elements(type_: TensorType) -> int:
    """How many numbers a value holds; a flexible size counts as 1."""
    return prod(size for size in type_.shape if size is not None)


def bytes_of(type_: TensorType) -> int:
    """Bytes of a value in memory."""
    return elements(type_) * BYTES.get(type_.dtype, 1)


def read_ops(function: Function) -> list[Op]:
    """The ops of a function in the order of the file, those of nested blocks behind their op."""
    ops = list(_Reader(function).block(function.block, 0))
    read = {name for op in ops for name in op.sources} | _returned(function.block)
    return [
        replace(op, unread=frozenset(i for i, name in enumerate(op.results) if name not in read))
        for op in ops
    ]


def _returned(block: Block) -> set[str]:
    """The values that a block, or a block in it, gives back."""
    nested = (inner for operation in block.operations for inner in operation.blocks)
    return {*block.outputs}.union(*map(_returned, nested))


class _Reader:
    """What is known of a function's values while its ops are read in order."""

    def __init__(self, function: Function):
        self.types: dict[str, TensorType] = dict(function.inputs) | function.states
        self.known: dict[str, tuple[TensorType, Constant | None, int, str]] = {}

    def block(self, block, depth: int) -> Iterator[Op]:
        self.types.update(block.inputs)
        for operation in block.operations:
            if operation.is_constant:
                self._constant(operation)
                continue
            yield self._op(operation, depth)
            self.types.update(operation.outputs)
            for nested in operation.blocks:
                yield from self.block(nested, depth + 1)

    def _constant(self, operation: Operation) -> None:
        """Remember a constant by name: type, value where it is plain, bytes, how it is packed."""
        found = [self._found(item) for items in operation.inputs.values() for item in items]
        stored = sum(bytes_ for _, _, bytes_, _ in found)
        plain = operation.type == "const"
        value, how = (found[0][1], "") if plain else (None, self._packing(operation))
        for name, type_ in operation.outputs:
            self.known[name] = (type_, value, stored, how)

    def _packing(self, operation: Operation) -> str:
        """The type of a compressed constant, or BLOCKS where scales change along its input."""
        for item in operation.inputs.get("scale", ()):
            if max(self._found(item)[0].shape[1:], default=1) > 1:
                return BLOCKS
        return operation.type

    def _found(self, item: str | Constant) -> tuple[TensorType, Constant | None, int, str]:
        if isinstance(item, Constant):
            return item.type, item, item.stored_bytes, ""
        return self.known[item]

    def _op(self, operation: Operation, depth: int) -> Op:
        inputs, constants, attributes, sources = {}, {}, {}, []
        weight, compressed = 0, set()
        for key, items in operation.inputs.items():
            for item in items:
                if isinstance(item, str) and item not in self.known:
                    inputs.setdefault(key, []).append(self.types[item])
                    sources.append(item)
                    continue
                type_, value, stored, how = self._found(item)
                constants.setdefault(key, []).append(type_)
                weight += stored
                compressed |= {how} - {""}
                if value is not None and not value.blob and elements(type_) <= SMALL:
                    attributes[key] = value.value
        return Op(
            operation.type,
            operation.name,
            {key: tuple(types) for key, types in inputs.items()},
            tuple(type_ for _, type_ in operation.outputs),
            {key: tuple(types) for key, types in constants.items()},
            attributes,
            tuple(sources),
            tuple(name for name, _ in operation.outputs),
            weight,
            frozenset(compressed),
            depth,
        )
