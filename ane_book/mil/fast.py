"""What is worth preparing at load: constant weights laid out as matrices.

A language model's decode step is about a hundred matrix-vector products with constant weights,
bound by how fast those weights are read. In half precision a 1x1 convolution keeps its weight as
the program stores it: two bytes a weight, and torch's half `mv` sums in float32 and rounds once.
In single precision the weight is laid out column by column, which torch's `mv` reads faster.

Everything here is optional: with `optimize=False` the executor calls the plain ops, and a test
holds both to the same numbers. research/executor-speed.md has what was tried and measured.
"""

from ane_book.mil.ops.conv import pointwise
from ane_book.mil.reader import Operation
import torch
from torch import Tensor

__all__ = ["specialize"]


def half_pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """A 1x1 convolution in half precision: x (N, C, *D), weight (O, C) -> (N, O, *D)."""
    if x.numel() != weight.shape[1]:  # half `mm` is far slower than widening the weight first
        return pointwise(x, weight.float())
    return torch.mv(weight, x.reshape(-1)).view(1, -1, *x.shape[2:])


def specialize(compiler, operation: Operation) -> tuple | None:
    """A faster function for an op, with the source text of its arguments; None for most ops."""
    if operation.type != "conv" or not _is_pointwise(compiler, operation):
        return None
    weight = compiler.constant(operation.inputs["weight"][0])
    x = f"x={compiler.argument('x', operation.inputs['x'])}"
    if "bias" not in operation.inputs and compiler.dtype(weight) == torch.float16:
        return half_pointwise, [x, f"weight={compiler.bind(compiler.tensor(weight).flatten(1))}"]
    arguments = [x, f"weight2d={compiler.bind(compiler.column_major(weight))}"]
    if "bias" in operation.inputs:
        bias = compiler.tensor(compiler.constant(operation.inputs["bias"][0]))
        arguments.append(f"bias={compiler.bind(bias.float())}")
    return pointwise, arguments


def _is_pointwise(compiler, operation: Operation) -> bool:
    """Whether a conv is a plain matrix product with a constant weight and bias."""
    given = {key: compiler.constant(items[0]) for key, items in operation.inputs.items()}
    if given["weight"] is None or ("bias" in given and given["bias"] is None):
        return False

    def value(key: str, default):
        constant = given.get(key)
        if key in given and constant is None:
            return None
        return default if constant is None else compiler.plain(constant)

    weight = given["weight"]
    kernel = (weight.shape if isinstance(weight, torch.Tensor) else weight.type.shape)[2:]
    return (
        set(kernel) == {1}
        and value("groups", 1) == 1
        and set(value("strides", [1]) or [0]) == {1}
        and set(value("pad", [0]) or [0]) == {0}
    )
