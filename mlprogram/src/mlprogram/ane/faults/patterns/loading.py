"""Programs that Core ML refuses or does not survive, where the executor runs them."""

from collections.abc import Iterator, Sequence
from math import prod
import re

from mlprogram.ane.faults.patterns.known import (
    among,
    each,
    flexible,
    integers,
    numbers,
    shape_of,
    size_of,
)
from mlprogram.ane.laws.graph import ProgramGraph, Seen, sizes
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import numpy as np

ATTENTION = "scaled_dot_product_attention"
BLOCKWISE = "constexpr_blockwise_shift_scale"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words of MIL's text, which names of values may not be.
RESERVED = frozenset([
    "any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string",
    "bf16", "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "state",
])  # fmt: skip
#: Ops whose inputs Core ML reads from the program's text alone -> those inputs.
LITERAL = {"reshape_like": ("begins", "ends", "end_masks"), "classify": ("classes",)}
CHAIN = 387  # convolutions in a row that the compiler for two engines does not survive
AFFINE = 1024  # channels from which on it refuses a scale between two reshapes
LARGE_HEAD = 512
NORM = 8  # the most ops between a norm's reshape and its scale


# --- the function and its features


def function_not_main(graph: ProgramGraph) -> Iterator[Seen]:
    package, name = graph.package, graph.function.name
    if len(package.functions) == 1 and not package.description.functions and name != "main":
        yield Seen(f"the only function is called {name!r}")


def functions_flexible(graph: ProgramGraph) -> Iterator[Seen]:
    given = [name for name, type_ in graph.function.inputs.items() if flexible(type_)]
    if len(graph.package.functions) > 1 and given:
        count = len(graph.package.functions)
        yield Seen(f"input {given[0]!r} has a flexible size, one of {count} functions")


def enumerated_together(graph: ProgramGraph) -> Iterator[Seen]:
    several = [
        name
        for name, kind in graph.features.items()
        if kind.multiArrayType.enumeratedShapes.shapes or kind.imageType.enumeratedSizes.sizes
    ]
    if len(several) > 1:
        yield Seen(f"inputs {several[0]!r} and {several[1]!r} have enumerated shapes")


def range_beside_fixed(graph: ProgramGraph) -> Iterator[Seen]:
    ranged = [name for name, kind in graph.features.items() if _ranges(kind)]
    fixed = [name for name, type_ in graph.function.inputs.items() if not flexible(type_)]
    if graph.function.states and ranged and fixed:
        text = f"input {fixed[0]!r} has one size and {ranged[0]!r} a range of them, beside a state"
        yield Seen(text)


def slice_of_none(graph: ProgramGraph) -> Iterator[Seen]:
    lows = (size.lowerBound for kind in graph.features.values() for size in _ranges(kind))
    for operation in each(graph, "slice_by_index") if 0 in lows else ():
        if flexible(graph.type(graph.item(operation, "x"))):
            yield Seen("a slice_by_index where an input's size may be 0", operation)


def _ranges(kind) -> Sequence:
    """The ranges of the sizes of an input, from its description."""
    return kind.multiArrayType.shapeRange.sizeRanges


def name_invalid(graph: ProgramGraph) -> Iterator[Seen]:
    for name in graph.types:
        if not NAME.fullmatch(name) or name in RESERVED:
            yield Seen(f"a value called {name!r}", graph.makers.get(name))


def scalar_input(graph: ProgramGraph) -> Iterator[Seen]:
    for name, type_ in graph.function.inputs.items():
        if not type_.shape and type_.kind == "tensor":
            yield Seen(f"input {name!r} is {type_}, without an axis")


def int8_features(graph: ProgramGraph) -> Iterator[Seen]:
    for name, type_ in (graph.function.inputs | graph.outputs).items():
        if type_.dtype == "int8":
            yield Seen(f"{name!r} is {type_}")


def state_constant(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "write_state"):
        if graph.fixed(graph.item(operation, "data")):
            state = graph.item(operation, "input")
            yield Seen(f"a constant is written to state {state!r}", operation)


def state_returned(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "write_state"):
        name, state = (graph.item(operation, key) for key in ("data", "input"))
        if name in graph.outputs:
            yield Seen(f"output {name!r} is what is written to state {state!r}", operation)


def empty_tensor(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.operations:
        joined = [graph.type(item) for item in operation.inputs.get("values", ())]
        types = [type_ for _, type_ in operation.outputs] + [type_ for type_ in joined if type_]
        if any(0 in type_.shape for type_ in types):
            yield Seen(f"{operation.type} of no elements", operation)


# --- ops


def matmul_integer(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "matmul", "linear"):
        if integers(graph.type(graph.item(operation, "x"))):
            yield Seen(f"a {operation.type} of integers", operation)


def select_broadcast(graph: ProgramGraph) -> Iterator[Seen]:
    several = len(graph.package.functions) > 1
    for operation in each(graph, "select"):
        whole = operation.outputs[0][1].shape
        shapes = [shape_of(graph, operation, key) for key in ("cond", "a", "b")]
        short = [shape for shape in shapes if shape and _broadcasts(shape, whole)]
        if short and (several or None in whole):
            yield Seen(f"a select that broadcasts {sizes(short[0])} to {sizes(whole)}", operation)


def _broadcasts(shape: tuple[int | None, ...], whole: tuple[int | None, ...]) -> bool:
    pairs = zip(shape[::-1], whole[::-1], strict=False)
    return len(shape) < len(whole) or any(n == 1 and m != 1 for n, m in pairs)


def pad_computed(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "pad"):
        axes = len(shape_of(graph, operation, "x"))
        if axes > 1 and not graph.fixed(graph.item(operation, "pad")):
            yield Seen(f"a pad of {axes} axes by a computed amount", operation)


def resize_zero(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "resize"):
        if 0 in numbers(graph, operation, "shape"):
            yield Seen("a resize to a size of 0, which keeps that of its input", operation)


def squeeze_wide(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "squeeze"):
        axes = numbers(graph, operation, "axes")
        widest = max((size_of(graph, operation, "x", axis) for axis in axes), default=1)
        if widest > 1:
            yield Seen(f"a squeeze of an axis of {widest}", operation)


def literal_named(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in among(graph, LITERAL):
        named = [k for k in LITERAL[operation.type] if isinstance(graph.item(operation, k), str)]
        if named:
            yield Seen(f"{operation.type} takes {named[0]} from a const op", operation)


def mean_flexible(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "reduce_mean"):
        if flexible(graph.type(graph.item(operation, "x"))):
            yield Seen("a reduce_mean of a flexible size", operation)


def einsum_flexible(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "einsum"):
        if any(flexible(graph.type(item)) for item in operation.inputs["values"]):
            yield Seen("an einsum of a flexible size", operation)


def instance_norm_volume(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "instance_norm"):
        if len(shape_of(graph, operation, "x")) == 5:
            yield Seen("an instance_norm of five axes", operation)


# --- attention


def attention_mask_flexible(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, ATTENTION):
        if flexible(graph.type(graph.item(operation, "attn_mask"))):
            yield Seen(f"a {ATTENTION} whose mask has a flexible size", operation)


def attention_large_heads(graph: ProgramGraph) -> Iterator[Seen]:
    heads = [(op, size_of(graph, op, "query", -1)) for op in each(graph, ATTENTION)]
    large = [(op, head) for op, head in heads if head >= LARGE_HEAD]
    if len(large) > 1:
        last, head = large[-1]
        yield Seen(f"{len(large)} of {ATTENTION} with heads of {head}", last)


def attention_cpu(graph: ProgramGraph) -> Iterator[Seen]:
    """The rule fits the twelve sizes of keys and heads that the source tried."""
    for operation in each(graph, ATTENTION):
        queries, keys = (size_of(graph, operation, name, -2) for name in ("query", "key"))
        head = size_of(graph, operation, "query", -1)
        half = operation.outputs[0][1].dtype == "fp16"
        beside = len(graph.operations) > 1
        if half and beside and queries > 1 and keys * head >= 8192 and head % 32 == 0:
            text = f"a {ATTENTION} of {queries} queries, {keys} keys, heads of {head}"
            yield Seen(text, operation)


# --- weights, and the engine's compiler


def constexpr_returned(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        if any(name in graph.outputs for name, _ in operation.outputs):
            yield Seen(f"a {operation.type} is an output of the function", operation)


def constexpr_vector(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        name, type_ = operation.outputs[-1]
        inner = any(r.type.startswith("constexpr_") for r in graph.readers.get(name, ()))
        if len(type_.shape) <= 1 and not inner:
            yield Seen(f"a {operation.type} makes {type_}", operation)


def palette_quantised_vector(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        lut, shape = graph.maker(graph.item(operation, "lut")), shape_of(graph, operation, "lut")
        if lut is None or lut.type != BLOCKWISE or shape[-1:] in ((), (1,)):
            continue
        if shape[0] == 1 or set(shape[1:-2]) != {1}:
            text = f"a palette of vectors of {shape[-1]}, of integers with a scale"
            yield Seen(text, operation)


def conv_chain(graph: ProgramGraph) -> Iterator[Seen]:
    longest: dict[str, int] = {}
    for operation in graph.operations:
        here = max((longest.get(name, 0) for name in graph.computed(operation)), default=0)
        here += operation.type == "conv"
        longest.update((name, here) for name, _ in operation.outputs)
        if here == CHAIN and operation.type == "conv":
            yield Seen(f"{CHAIN} convolutions after each other", operation)
            return


def affine_between_reshapes(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "mul"):
        constant = graph.constant(graph.item(operation, "y"))
        if constant is None or not _per_channel(constant):
            continue
        if all(_reaches_reshape(graph, operation, back) for back in (True, False)):
            yield Seen(f"a scale of {sizes(constant.type.shape)} between two reshapes", operation)


def _per_channel(constant: Constant) -> bool:
    """Whether it is (1, C, 1, 1) with C of AFFINE and more, and its numbers differ."""
    shape = constant.type.sizes
    if len(shape) != 4 or shape[1] < AFFINE or prod(shape) != shape[1]:
        return False
    return bool(np.ptp(constant.array().astype(np.float32)) > 0)


def _reaches_reshape(graph: ProgramGraph, operation: Operation, back: bool) -> bool:
    """Whether what is before an op (by x), or after it, is a reshape, but for ops of a norm."""
    for _ in range(NORM):
        readers = graph.readers.get(operation.outputs[0][0], [])
        found = graph.maker(graph.item(operation, "x")) if back else next(iter(readers), None)
        if found is None or found.type not in ("add", "sub", "mul", "real_div", "layer_norm"):
            return found is not None and found.type == "reshape"
        operation = found
    return False
