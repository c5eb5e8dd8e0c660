"""What is worth preparing at load: constant weights laid out as matrices.

A language model's decode step is about a hundred matrix-vector products with constant weights,
bound by how fast those weights are read. So a 1x1 convolution keeps its weight as the program
stores it: in half precision the product of one token reads two bytes a weight (torch's half `mv`
sums in float32 and rounds once), and a chunk of tokens widens the weight block by block while it is
in the cache.

Everything here is optional: with `optimize=False` the executor calls the plain ops, and a test
holds both to the same numbers. research/executor-speed.md has what was tried and measured.
"""

from ane_book.mil.ops.conv import pointwise
from ane_book.mil.reader import Operation
import torch
from torch import Tensor

__all__ = ["specialize"]

BLOCK_ELEMENTS = 1 << 18  # of a widened block: 1 MB, so that it stays in a core's cache


def half_pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """A 1x1 convolution in half precision: x (N, C, *D), weight (O, C) -> (N, O, *D)."""
    n, channels, *spatial = x.shape
    if x.numel() == channels:
        return torch.mv(weight, x.reshape(channels)).view(n, -1, *spatial)
    wide = x.reshape(n, channels, -1).float()
    rows = max(1, BLOCK_ELEMENTS // channels)
    parts = [torch.matmul(block.float(), wide).to(x.dtype) for block in weight.split(rows)]
    return torch.cat(parts, dim=1).view(n, -1, *spatial)


def specialize(compiler, operation: Operation) -> tuple | None:
    """A faster function for an op, with the source text of its arguments; None for most ops."""
    if operation.type != "conv" or not _is_pointwise(compiler, operation):
        return None
    weight = compiler.tensor(compiler.constant(operation.inputs["weight"][0])).flatten(1)
    x = f"x={compiler.argument('x', operation.inputs['x'])}"
    if weight.dtype == torch.float16 and "bias" not in operation.inputs:
        return half_pointwise, [x, f"weight={compiler.bind(weight)}"]
    arguments = [x, f"weight2d={compiler.bind(compiler.widened(weight))}"]
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

    kernel = compiler.tensor(given["weight"]).shape[2:]
    return (
        set(kernel) == {1}
        and value("groups", 1) == 1
        and set(value("strides", [1]) or [0]) == {1}
        and set(value("pad", [0]) or [0]) == {0}
    )
