"""Groups of ops that one compiled kernel does at once: attention, RMS norm, the gate of SwiGLU.

A converter writes attention as products, mask, softmax and products, and RMS norm as the layer norm
of [x, -x]. They are found by their shape in the graph, from the op in their middle outwards, and
only where no intermediate value is used by anyone else. Rounding stays where the ops round. A
slot of the cache that holds nothing but zeros, and to whose score -30,000 or less is added, takes
no part in attention; what it would add is e^-30,000.

The executor's trace, and `optimize=False`, run every op by itself.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ane_book.mil.analysis.aliases import uses
from ane_book.mil.analysis.constants import Constants
from ane_book.mil.kernels import native, native_ops
from ane_book.mil.ops.tensor_transformation import slice_of
from ane_book.mil.package.reader import Block, Operation, TensorType
import torch

__all__ = ["fuse"]

FLOATS = ("fp16", "fp32")
WRITES = frozenset(["write_state", "slice_update"])


@dataclass(frozen=True)
class Fused:
    """Ops that run as one, in the place of the last of them: what it takes, and how."""

    kind: str
    operations: list[Operation]
    operands: list[str]
    run: Callable

    @cached_property
    def operation(self) -> Operation:
        last = self.operations[-1]
        return Operation(self.kind, last.name, {"values": self.operands}, last.outputs, [])


class _Graph:
    """Who makes and who uses each value of a block."""

    def __init__(self, block: Block, constants: Constants, types: dict[str, TensorType]):
        self.constants, self.types = constants, types
        self.position = {id(o): i for i, o in enumerate(block.operations)}
        self.operations = block.operations
        self.maker = {name: o for o in block.operations for name, _ in o.outputs}
        self.count = Counter(name for o in block.operations for name in uses(o))
        self.count.update(block.outputs)
        self.users: dict[str, list[Operation]] = {}
        for operation in block.operations:
            for name in uses(operation):
                self.users.setdefault(name, []).append(operation)

    def made_by(self, name: str, kind: str) -> Operation | None:
        """The op of this type that makes a value for one user alone."""
        operation = self.maker.get(name)
        if operation is None or operation.type != kind or self.count[name] != 1:
            return None
        return operation

    def user(self, name: str, kind: str) -> Operation | None:
        """The only user of a value, if it is of this type."""
        found = self.users.get(name, [])
        return found[0] if len(found) == self.count[name] == 1 and found[0].type == kind else None

    def value(self, operation: Operation, key: str, default: object = None) -> object:
        """A parameter as Python; None where it is computed at run time."""
        if key not in operation.inputs:
            return default
        constant = self.constants.find(operation.inputs[key][0])
        return None if constant is None else self.constants.plain(key, constant)

    def shape(self, name: object) -> tuple[int, ...] | None:
        """The shape of a float value, where it is declared, without zeros."""
        type_ = self.types.get(name) if isinstance(name, str) else None
        if type_ is None or type_.dtype not in FLOATS or None in type_.shape or 0 in type_.shape:
            return None
        return type_.shape

    def can_be_one(self, operations: list[Operation]) -> bool:
        """Whether no state is written between the first and the last of them, and no op of them
        makes what it should not.
        """
        if any(len(o.outputs) != 1 and o.type != "split" for o in operations):
            return False
        places = sorted(self.position[id(o)] for o in operations)
        between = self.operations[places[0] : places[-1]]
        return not any(o.type in WRITES or o.blocks for o in between)


def fuse(
    block: Block, constants: Constants, types: dict[str, TensorType]
) -> tuple[Block, dict[int, Callable]]:
    """The block with one op for each group, and the function of each, by the id of that op."""
    graph, groups = _Graph(block, constants, types), []
    for operation in block.operations if native.available() else ():
        with constants.preparing(operation):
            find = MIDDLE.get(operation.type)
            group = find and find(graph, operation)
        if group and graph.can_be_one(group.operations):
            groups.append(group)
    within = {id(o) for group in groups for o in group.operations}
    last = {id(group.operations[-1]): group for group in groups}
    operations = [
        last[id(o)].operation if id(o) in last else o
        for o in block.operations
        if id(o) in last or id(o) not in within
    ]
    return Block(block.inputs, operations, block.outputs), {
        id(group.operation): group.run for group in groups
    }


def _attention(graph: _Graph, softmax: Operation) -> Fused | None:
    """softmax(concat(q K1^T, q K2^T) + mask), split, times V1 and V2, added; or with one part."""
    add = graph.made_by(softmax.inputs["x"][0], "add")
    weights = softmax.outputs[0][0]
    shape = graph.shape(weights)
    if add is None or shape is None or len(shape) < 3:
        return None
    if graph.value(softmax, "axis", -1) not in (-1, len(shape) - 1):
        return None
    for scores, mask in (("x", "y"), ("y", "x")):
        before = _scores(graph, add.inputs[scores][0])
        mask_name = add.inputs[mask][0]
        rows = graph.shape(mask_name)
        if before and rows and 2 <= len(rows) <= len(shape) and set(rows[:-2]) <= {1}:
            break
    else:
        return None
    query, keys, products = before
    q_shape, slots = graph.shape(query), tuple(graph.shape(key)[-2] for key in keys)
    if shape != (*q_shape[:-1], sum(slots)):
        return None
    after = _weighted(graph, weights, [*slots])
    if after is None or rows[-1] != shape[-1] or rows[-2] not in (1, shape[-2]):
        return None
    values, rest = after
    if [graph.shape(value) for value in values] != [graph.shape(key) for key in keys]:
        return None
    dtype = graph.constants.dtype(softmax.outputs[0][1])
    operands = [query, mask_name, *keys, *values]
    run = native_ops.attention(q_shape, slots, rows[-2], dtype)
    run = native_ops.fixed(None, run, dtype, *[graph.shape(name) for name in operands])
    return Fused("attention", [*products, add, softmax, *rest], operands, run)


def _scores(graph: _Graph, name: str) -> tuple[str, list[str], list[Operation]] | None:
    """q, the keys of each part, and the ops, of products with transposed keys, joined or single."""
    joined = graph.made_by(name, "concat")
    parts = [name]
    if joined is not None:
        parts = joined.inputs["values"]
        last = graph.value(joined, "axis") in (-1, len(graph.shape(name) or ()) - 1)
        if len(parts) != 2 or not last or graph.value(joined, "interleave", False) is not False:
            return None
    products = [graph.made_by(part, "matmul") for part in parts]
    if None in products or any(graph.value(p, "transpose_y", False) is not True for p in products):
        return None
    if any(graph.value(p, "transpose_x", False) is not False for p in products):
        return None
    query, *others = {p.inputs["x"][0] for p in products}
    keys = [p.inputs["y"][0] for p in products]
    shape, *sizes = [graph.shape(name) or () for name in (query, *keys)]
    wanted = [(*shape[:-2], *size[-2:-1], *shape[-1:]) for size in sizes]
    if others or len(shape) < 2 or wanted != sizes or len(shape) != len(wanted[0]):
        return None
    return query, keys, [*products, *([joined] if joined else [])]


def _weighted(
    graph: _Graph, weights: str, slots: list[int]
) -> tuple[list[str], list[Operation]] | None:
    """The values of each part, and the ops, of products with the weights, split or whole."""
    parts, operations = [weights], []
    if len(slots) == 2:
        split = graph.user(weights, "split")
        shape = graph.shape(weights)
        wanted = [(*shape[:-1], size) for size in slots]
        if split is None or [graph.shape(name) for name, _ in split.outputs] != wanted:
            return None
        sizes = graph.value(split, "split_sizes", slots if slots[0] == slots[1] else None)
        last = graph.value(split, "axis") in (-1, len(shape) - 1)
        if not last or sizes != slots or graph.value(split, "num_splits", 2) != 2:
            return None
        parts, operations = [name for name, _ in split.outputs], [split]
    products = [graph.user(part, "matmul") for part in parts]
    for part, product in zip(parts, products, strict=True):
        if product is None or product.inputs["x"] != [part]:
            return None
        if {graph.value(product, f"transpose_{key}", False) for key in "xy"} != {False}:
            return None
    values = [product.inputs["y"][0] for product in products]
    if None in [graph.shape(value) for value in values]:
        return None
    operations += products
    if len(parts) == 2:
        add = graph.user(products[0].outputs[0][0], "add")
        if add is None or graph.user(products[1].outputs[0][0], "add") is not add:
            return None
        operations.append(add)
    return values, operations


def _rms_norm(graph: _Graph, norm: Operation) -> Fused | None:
    """layer_norm(concat(x, -x)), its first half, and a weight if one follows."""
    pair = graph.made_by(norm.inputs["x"][0], "concat")
    shape = graph.shape(norm.outputs[0][0])
    axes = graph.value(norm, "axes")
    if pair is None or shape is None or axes not in [[i] for i in range(-len(shape), len(shape))]:
        return None
    axis = axes[0] % len(shape)
    if {"gamma", "beta"} & norm.inputs.keys() or len(pair.inputs["values"]) != 2:
        return None
    x, negated = pair.inputs["values"]
    minus = graph.made_by(negated, "mul") if isinstance(negated, str) else None
    half = graph.user(norm.outputs[0][0], "slice_by_index")
    epsilon = graph.value(norm, "epsilon", 1e-5)
    if minus is None or half is None or epsilon is None:
        return None
    if half.inputs["x"] != [norm.outputs[0][0]]:
        return None
    if minus.inputs["x"] != [x] or graph.value(minus, "y") != -1.0:
        return None
    if graph.value(pair, "axis") not in (axis, axis - len(shape)):
        return None
    doubled = tuple(n * 2 if i == axis else n for i, n in enumerate(graph.shape(x) or ()))
    if shape != doubled or graph.value(pair, "interleave", False) is not False:
        return None
    if not _is_first_half(graph, half, shape, axis):
        return None
    operations, weight = [minus, pair, norm, half], None
    after = graph.user(half.outputs[0][0], "mul")
    if after is not None:
        weight = _weight(graph, after, half.outputs[0][0], graph.shape(x), axis)
        operations += [after] if weight is not None else []
    dtype = graph.constants.dtype(norm.outputs[0][1])
    run = native_ops.rms_norm(graph.shape(x), dtype, axis, weight, epsilon)
    run = native_ops.fixed(None, run, dtype, graph.shape(x))
    return Fused("rms_norm", operations, [x], run)


def _gated(graph: _Graph, silu: Operation) -> Fused | None:
    """silu(gate) times a value of its shape."""
    ((activated, type_),), gate = silu.outputs, silu.inputs["x"][0]
    mul, shape = graph.user(activated, "mul"), graph.shape(gate)
    if mul is None or shape is None:
        return None
    other = mul.inputs["y" if mul.inputs["x"] == [activated] else "x"][0]
    if graph.shape(other) != shape:
        return None
    dtype = graph.constants.dtype(type_)
    run = native_ops.fixed(None, native_ops.gated(shape, dtype), dtype, shape, shape)
    return Fused("gated", [silu, mul], [gate, other], run)


def _is_first_half(graph: _Graph, half: Operation, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a slice of a value of this shape takes just the first half along `axis`."""
    given = {key: graph.value(half, key) for key in half.inputs if key != "x"}
    if None in given.values() or shape[axis] % 2:
        return False
    whole = torch.empty(shape, device="meta")
    part, wanted = slice_of(whole, **given), whole.narrow(axis, 0, shape[axis] // 2)
    places = [(x.shape, x.stride(), x.storage_offset()) for x in (part, wanted)]
    return places[0] == places[1]


def _weight(
    graph: _Graph, mul: Operation, x: str, shape: tuple[int, ...], axis: int
) -> torch.Tensor | None:
    """The constant that scales x along `axis`, as a vector; None where the factor is another."""
    other = mul.inputs["y" if mul.inputs["x"] == [x] else "x"][0]
    constant = graph.constants.find(other)
    if constant is None or constant.type.dtype != graph.types[x].dtype:
        return None
    size, rank = constant.type.shape, len(constant.type.shape)
    aligned = (1,) * (len(shape) - rank) + size
    if rank > len(shape) or aligned != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        return None
    return graph.constants.tensor(constant).reshape(-1)


MIDDLE = {"softmax": _attention, "layer_norm": _rms_norm, "silu": _gated}
