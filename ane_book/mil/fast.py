"""What is worth preparing at load: the layout of constant weights.

A language model's step is two hundred matrix-vector products with constant weights. Here each such op is
bound to its weight as one contiguous float32 matrix, so that a call is the product and nothing else.
Everything is optional: with `optimize=False` the executor calls the plain ops, and tests hold both to
the same numbers.
"""

import torch

from ane_book.mil.ops.conv import pointwise
from ane_book.mil.reader import Constant, Operation

__all__ = ["specialize"]


def specialize(compiler, operation: Operation):
    """A faster function for this op with its arguments, as (function, source texts), or None."""
    maker = MAKERS.get(operation.type)
    return maker(compiler, operation) if maker else None


def _constant(compiler, operation: Operation, key: str) -> Constant | torch.Tensor | None:
    items = operation.inputs.get(key)
    return compiler.constant(items[0]) if items else None


def _static(compiler, operation: Operation, key: str, default):
    """A static input's value where it is known at load; `default` where it is not given."""
    if key not in operation.inputs:
        return default
    constant = _constant(compiler, operation, key)
    if constant is None:
        return None
    return constant.tolist() if isinstance(constant, torch.Tensor) else constant.value


def _prepared(compiler, key: tuple, make) -> torch.Tensor:
    """A laid-out weight, made once for all functions of the package."""
    if key not in compiler.shared:
        compiler.shared[key] = make()
    return compiler.shared[key]


def _conv(compiler, operation: Operation):
    """A 1x1 convolution with a constant weight is a matrix product."""
    weight = _constant(compiler, operation, "weight")
    rank = len(weight.shape if isinstance(weight, torch.Tensor) else weight.type.shape) if (
        weight is not None
    ) else 0
    if rank < 3:
        return None
    plain = (
        _static(compiler, operation, "groups", 1) == 1
        and set(_static(compiler, operation, "strides", [1]) or [0]) == {1}
        and set(_static(compiler, operation, "pad", [0]) or [0]) <= {0}
        and set((weight.shape if isinstance(weight, torch.Tensor) else weight.type.shape)[2:]) == {1}
    )
    has_bias = "bias" in operation.inputs
    bias = _constant(compiler, operation, "bias") if has_bias else None
    if not plain or (has_bias and bias is None):
        return None
    identity = getattr(weight, "blob", None) or id(weight)
    matrix = _prepared(
        compiler,
        ("pointwise", identity),
        lambda: compiler.tensor(weight).flatten(1).to(torch.float32).contiguous(),
    )
    x = compiler.argument("x", operation.inputs["x"])
    arguments = [f"x={x}", f"weight2d={compiler.bind(matrix)}"]
    if bias is not None:
        arguments.append(f"bias={compiler.bind(compiler.tensor(bias).float())}")
    return pointwise, arguments


MAKERS = {"conv": _conv}
