"""Products, convolutions and attention."""

from math import prod, sqrt
from typing import Any

from coreai import authoring as ai
from mlprogram.ops.conv import resolve_padding
import numpy as np

from . import op
from .activation import softmax
from .common import counts, ints, like, reshaped, shape_of, wide


def _swapped(x: Any) -> Any:
    rank = len(shape_of(x))
    return ai.transpose(x, counts(*range(rank - 2), rank - 1, rank - 2))


@op()
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """numpy's matmul; a vector is a row on the left and a column on the right."""
    left, right = len(shape_of(x)) == 1, len(shape_of(y)) == 1
    x = reshaped(x, [1, *shape_of(x)]) if left else (_swapped(x) if transpose_x else x)
    y = reshaped(y, [*shape_of(y), 1]) if right else (_swapped(y) if transpose_y else y)
    made = ai.broadcasting_batch_matmul(x, y)
    shape = shape_of(made)
    if right:
        shape = shape[:-1]
    if left:
        shape = [*shape[: -1 if right else -2], *([] if right else shape[-1:])]
    return reshaped(made, shape)


@op()
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    made = matmul(x, weight, transpose_y=True)
    return made if bias is None else ai.broadcasting_add(made, bias)


@op()
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:

    def make(query: Any) -> Any:
        wide = [ai.cast(x, np.float32) for x in (key, value)]
        scale = like(query, 1 / sqrt(shape_of(query)[-1]))
        scores = ai.broadcasting_mul(matmul(query, wide[0], transpose_y=True), scale)
        if attn_mask is not None:
            mask = attn_mask
            if mask.type.dtype == ai.bool_:
                low = like(scores, -1e30)
                mask = ai.broadcasting_where(mask, like(scores, 0), low)
            scores = ai.broadcasting_add(scores, ai.cast(mask, np.float32))
        return matmul(softmax(scores), wide[1])

    return wide(make, query)


def _sides(
    kind: str, pad: list[int] | None, sizes: list[int], kernel: list[int], strides: list[int],
    dilations: list[int],
) -> list[tuple[int, int]]:  # fmt: skip
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return resolve_padding(kind.lower(), pad, sizes, extent, strides)


def padded(x: Any, sides: list[tuple[int, int]], fill: float = 0) -> Any:
    if not any(map(any, sides)):
        return x
    room = [0, 0, 0, 0, *(side for pair in sides for side in pair)]
    return ai.pad(x, np.array(room, np.uint32), like(x, fill))


@op()
def conv(
    x: Any, weight: Any, bias: Any = None, strides: list[int] | None = None,
    pad_type: str = "valid", pad: list[int] | None = None, dilations: list[int] | None = None,
    groups: int = 1,
) -> Any:  # fmt: skip
    """1 to 3 dimensions; of 1 a second of size 1 is added."""
    kernel = shape_of(weight)[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    x = padded(x, _sides(pad_type, pad, shape_of(x)[2:], kernel, strides, dilations))
    if flat := len(kernel) == 1:
        x, weight = (reshaped(v, [*shape_of(v)[:2], 1, shape_of(v)[2]]) for v in (x, weight))
        strides, dilations = [1, *strides], [1, *dilations]
    make = ai.conv3d if len(kernel) == 3 else ai.conv2d
    numbers = [np.array(n, np.uint32) for n in (strides, dilations, groups)]
    made = make(x, weight, *numbers)
    if flat:
        made = reshaped(made, [*shape_of(made)[:2], shape_of(made)[3]])
    if bias is not None:
        made = ai.broadcasting_add(made, reshaped(bias, [1, -1, *[1] * len(kernel)]))
    return made


@op()
def conv_transpose(
    x: Any, weight: Any, bias: Any = None, pad: list[int] | None = None,
    output_shape: list[int] | None = None, pad_type: str = "valid",
    strides: list[int] | None = None, dilations: list[int] | None = None, groups: int = 1,
    *, _out: list,
) -> Any:  # fmt: skip
    """The full result, then cut or filled with zeros to the declared size, by the executor's rule.

    Of 1 dimension a second of size 1 is added.
    """
    kernel = shape_of(weight)[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    if flat := len(kernel) == 1:
        x, weight = (reshaped(v, [*shape_of(v)[:2], 1, shape_of(v)[2]]) for v in (x, weight))
        strides, dilations = [1, *strides], [1, *dilations]
    make = ai.conv_transpose3d if len(kernel) == 3 else ai.conv_transpose2d
    none = [0] * len(strides)
    numbers = [np.array(n, np.uint32) for n in (strides, none, dilations, none, groups)]
    made = make(x, weight, *numbers)
    if flat:
        made = reshaped(made, [*shape_of(made)[:2], shape_of(made)[3]])
    made = _cut(made, pad_type.lower(), pad, list(_out[0].shape)[2:])
    if bias is not None:
        made = ai.broadcasting_add(made, reshaped(bias, [1, -1, *[1] * len(kernel)]))
    return made


def _cut(full: Any, kind: str, pad: list[int] | None, sizes: list[int]) -> Any:
    """The part of a full transposed convolution that a padding leaves."""
    shape = shape_of(full)
    if kind == "same":
        before = [max(0, f - size) // 2 for f, size in zip(shape[2:], sizes, strict=True)]
    else:
        sides = resolve_padding(kind, pad, shape[2:], shape[2:], [1] * len(sizes))
        before = [b for b, _ in sides]
    ends = [min(f, b + size) for f, b, size in zip(shape[2:], before, sizes, strict=True)]
    kept = ai.slice_(full, ints(0, 0, *before), ints(*shape[:2], *ends), ints(*[1] * len(shape)))
    rest = [(0, size - (end - b)) for size, end, b in zip(sizes, ends, before, strict=True)]
    return padded(kept, rest)


@op()
def einsum(values: list[Any], equation: str) -> Any:
    """Two operands, by a product of matrices: axes of both that stay are its batch, those that do
    not are summed over."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    left, right = inputs.split(",")
    sizes = dict(zip(left + right, shape_of(values[0]) + shape_of(values[1]), strict=True))
    batch = [a for a in left if a in right and a in output]
    summed = [a for a in left if a in right and a not in output]
    rows = [a for a in left if a not in right]
    columns = [a for a in right if a not in left]
    if {*rows, *columns, *batch} != {*output}:
        raise ValueError(f"the equation {equation!r} sums over an axis of one operand")

    def matrix(value: Any, axes: str, *groups: list[str]) -> Any:
        order = [axes.index(axis) for group in groups for axis in group]
        shape = [prod(sizes[axis] for axis in group) for group in groups]
        return reshaped(ai.transpose(value, counts(*order)), shape)

    made = ai.broadcasting_batch_matmul(
        matrix(values[0], left, batch, rows, summed),
        matrix(values[1], right, batch, summed, columns),
    )
    found = [*batch, *rows, *columns]
    made = reshaped(made, [sizes[axis] for axis in found])
    return ai.transpose(made, counts(*(found.index(axis) for axis in output)))
