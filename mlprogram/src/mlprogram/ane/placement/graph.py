"""The list of ops of a function that Core ML places.

Constants are not placed: a `const` or `constexpr_*` belongs to the op that reads it, and counts
with its bytes in the file. No weight is read.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from math import prod

from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant, TensorType

BLOCKS = "blocks"  # marks a constant whose scales change along its input channels
SMALL = 64  # constants with up to so many elements, such as axes and pads, are attributes

Given = tuple[str, str | Constant]  # the name of an argument, and one of its values


@dataclass(frozen=True)
class GraphOp:
    """An op, as far as its placement depends on it.

    inputs: the types of its computed inputs, by argument. constants: the types of its constants, by
    argument; attributes: the values of the small ones. weight_bytes: of its constants in the file.
    """

    type: str
    name: str
    inputs: dict[str, tuple[TensorType, ...]]
    outputs: tuple[TensorType, ...]
    constants: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)
    weight_bytes: int = 0
    compressed: frozenset[str] = frozenset()  # types of `constexpr_*` of its constants, or BLOCKS
    unread: frozenset[int] = frozenset()  # outputs that nobody reads, such as a topk's indices

    @property
    def values(self) -> list[TensorType]:
        """The types of its computed inputs, and of its outputs that are used."""
        written = [t for i, t in enumerate(self.outputs) if i not in self.unread]
        return [t for types in self.inputs.values() for t in types] + written

    @property
    def operands(self) -> list[tuple[str, TensorType]]:
        """(argument, type) of everything that it reads, computed values before constants."""
        both = (*self.inputs.items(), *self.constants.items())
        return [(key, type_) for key, types in both for type_ in types]

    @property
    def flexible(self) -> bool:
        """Whether a size is known only at run time."""
        return any(None in type_.shape for type_ in self.values)

    def numbers(self, name: str) -> list[int]:
        """The attribute `name` as positive integers; [] if it is anything else."""
        value = self.attributes.get(name)
        values = value if isinstance(value, list) else [value]
        whole = [v for v in values if isinstance(v, int) and v > 0]
        return whole if len(whole) == len(values) else []

    @property
    def depth(self) -> int:
        """The terms of each sum in a product; a flexible size counts as 1."""
        x = self.operand("x")
        if x is None or not x.shape:
            return 1
        turned = self.attributes.get("transpose_x") and len(x.shape) > 1
        return x.shape[-2 if turned else -1] or 1

    def operand(self, name: str) -> TensorType | None:
        """The type of an argument, computed or constant; None if the op does not have it."""
        types = self.inputs.get(name) or self.constants.get(name)
        return types[0] if types else None


def elements(type_: TensorType) -> int:
    """The number of elements of a value; a flexible size counts as 1."""
    return prod(size for size in type_.shape if size is not None)


def bytes_of(type_: TensorType) -> int:
    """Bytes of a value in memory; a string counts as one."""
    return type_.nbytes or elements(type_)


def read_ops(package: Package, function: Function) -> list[GraphOp]:
    """The ops of a function in the order of the file, those of nested blocks behind their op."""
    graph = ProgramGraph(package, function)
    read = graph.readers.keys() | _returned(function.block)
    return [_op(graph, operation, read) for operation in graph.operations]


def _returned(block: Block) -> set[str]:
    """The outputs of a block and of its nested blocks."""
    nested = (inner for operation in block.operations for inner in operation.blocks)
    return {*block.outputs}.union(*map(_returned, nested))


def _op(graph: ProgramGraph, operation: Operation, read: Set[str]) -> GraphOp:
    values = [(key, item) for key, items in operation.inputs.items() for item in items]
    constants = [(key, item) for key, item in values if graph.fixed(item)]
    makers = [graph.maker(item) for _, item in constants]
    return GraphOp(
        operation.type,
        operation.name,
        _types(graph, [(key, item) for key, item in values if not graph.fixed(item)]),
        tuple(type_ for _, type_ in operation.outputs),
        _types(graph, constants),
        _attributes(graph, constants),
        sum(_stored(graph, item) for _, item in constants),
        frozenset(_packing(graph, m) for m in makers if m is not None and m.type != "const"),
        frozenset(i for i, (name, _) in enumerate(operation.outputs) if name not in read),
    )


def _types(graph: ProgramGraph, values: Iterable[Given]) -> dict[str, tuple[TensorType, ...]]:
    found: dict[str, list[TensorType]] = {}
    for key, item in values:
        type_ = graph.type(item)
        assert type_ is not None, f"{item} has no type, which a package is opened with"
        found.setdefault(key, []).append(type_)
    return {key: tuple(types) for key, types in found.items()}


def _attributes(graph: ProgramGraph, constants: Iterable[Given]) -> dict[str, object]:
    """The values of the small constants that are stored in the program itself."""
    known = ((key, graph.constant(item)) for key, item in constants)
    return {
        key: constant.value
        for key, constant in known
        if constant is not None and not constant.blob and elements(constant.type) <= SMALL
    }


def _stored(graph: ProgramGraph, item: str | Constant) -> int:
    """The packed bytes of a constant in the file."""
    if isinstance(item, Constant):
        return item.stored_bytes
    inputs = graph.makers[item].inputs.values()
    return sum(_stored(graph, each) for items in inputs for each in items)


def _packing(graph: ProgramGraph, maker: Operation) -> str:
    """The type of a compressed constant, or BLOCKS if scales change along its input channels."""
    scale = graph.type(graph.item(maker, "scale"))
    return BLOCKS if scale and max(scale.sizes[1:], default=1) > 1 else maker.type
