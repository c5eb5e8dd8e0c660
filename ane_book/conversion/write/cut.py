"""A lowered block cut at its projections: what is before, between and after them.

Each stretch is a piece of its own, stamped for every layer as a whole block is. Values that go from
one stretch to another get names that are the same in every layer and function.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ane_book.conversion.write.lowering import LoweredBlock
from ane_book.conversion.write.norms import operands
from ane_book.conversion.write.program import value_type

__all__ = ["Cut", "cut_block", "pieces_of", "source"]


@dataclass(frozen=True)
class Cut:
    """The stretches of a block, in order, one more than it has projections.

    names: of the values that leave a stretch, by what the block calls them. results: of the
    projections, by what the block calls their results.
    """

    stretches: list[LoweredBlock]
    names: dict[str, str]
    results: dict[str, str]


def cut_block(piece: LoweredBlock, projections: Sequence[str]) -> Cut:
    """Cut a block at the convolutions of these modules, its projections in order."""
    stretches, taken, results = [[]], {}, {}
    for operation in piece.operations:
        projection = _projection(operation, piece)
        if projection not in projections:
            stretches[-1].append(operation)
            continue
        (taken[projection],) = operands(operation, "x")
        if taken[projection] in piece.inputs:  # of which no stretch makes anything
            stretches[-1].append(_identity(operation, piece))
            taken[projection] = stretches[-1][-1].outputs[0].name
        results[operation.outputs[0].name] = projection
        stretches.append([])
    if list(taken) != list(projections):
        raise RuntimeError(f"the block has projections {list(taken)}, not {list(projections)}")
    names = {value: source(projection) for projection, value in taken.items()}
    names |= {name: name for name in piece.outputs}
    return Cut(pieces_of(piece, stretches, names), names, results)


def source(projection: str) -> str:
    """The name of what a projection is given."""
    return f"{projection.replace('.', '_')}_in"


def _projection(operation, piece: LoweredBlock) -> str | None:
    """The module whose convolution an op is."""
    if operation.type != "conv":
        return None
    (weight,) = operands(operation, "weight")
    return piece.parameters.get(weight, "").removesuffix(".weight")


def _identity(operation, piece: LoweredBlock):
    """An op that makes an input of the block a value of its own, for `operation` to take as x."""
    (x,) = operands(operation, "x")
    copy = type(operation)(type="identity")
    copy.inputs["x"].arguments.add(name=x)
    copy.outputs.add(name=f"{x}_as_it_is", type=value_type("fp16", piece.inputs[x]))
    return copy


def pieces_of(
    piece: LoweredBlock, stretches: list[list], names: dict[str, str]
) -> list[LoweredBlock]:
    """A piece of each stretch's ops; adds to `names` what other stretches take of one.

    names: of all values that leave a stretch, by what the block calls them.
    """
    constants = {o.outputs[0].name: o for o in piece.operations if o.type == "const"}
    shapes = piece.inputs | {v.name: _shape(v) for o in piece.operations for v in o.outputs}
    found = []
    for operations in ([o for o in s if o.type != "const"] for s in stretches):
        made = dict.fromkeys(v.name for o in operations for v in o.outputs)
        used = dict.fromkeys(v for o in operations for key in o.inputs for v in operands(o, key))
        own = [constants[name] for name in used if name in constants]
        inputs = {n: shapes[n] for n in used if n not in constants and n not in made}
        parameters = {n: piece.parameters[n] for n in used if n in piece.parameters}
        found.append((own + operations, inputs, made, parameters))
    taken = dict.fromkeys(name for _, inputs, *_ in found for name in inputs)
    held = [n for _, _, made, _ in found for n in made if n in taken and n not in names]
    names |= {name: f"held_{i}" for i, name in enumerate(held)}
    return [
        LoweredBlock(operations, inputs, tuple(name for name in made if name in names), parameters)
        for operations, inputs, made, parameters in found
    ]


def _shape(value) -> tuple[int, ...]:
    return tuple(size.constant.size for size in value.type.tensorType.dimensions)
