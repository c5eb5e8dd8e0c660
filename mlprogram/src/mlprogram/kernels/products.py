"""Products with a constant weight, prepared at load to read the weight as the package stores it.

A language model's decode step is about a hundred matrix-vector products with constant weights,
bound by how fast those weights are read. With a C compiler the weights stay half, int8, int4 or
4-bit palettes in memory (`native/`). Without one, torch's half `mv` computes 1x1 convolutions of
one token, and the plain ops everything else.

Letters: R rows and C columns of a weight; G palettes.
"""

from collections.abc import Callable
from functools import partial
from math import prod

from mlprogram.analysis.constants import Constants, Expansion, Known
from mlprogram.kernels import native
from mlprogram.kernels.graph import Graph, Unfit
from mlprogram.ops.conv import pointwise
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import torch
from torch import Tensor

#: Ops that may be products -> the input that is their weight.
FACTORS = {"conv": "weight", "linear": "weight", "matmul": "y"}


def product(graph: Graph, operation: Operation) -> Callable[[Tensor], Tensor]:
    """The op as a function of x alone; raises Unfit unless it multiplies by a constant weight."""
    constants, bias, has_bias = graph.constants, None, "bias" in operation.inputs
    factor = constants.find(operation.inputs[FACTORS[operation.type]][0])
    if has_bias:
        bias = constants.find(operation.inputs["bias"][0])
    if factor is None or (has_bias and bias is None):
        raise Unfit("its weight or bias is computed at run time")
    if not _is_product(graph, operation, factor):
        raise Unfit("it is no plain product of floats with a matrix")
    dtype = constants.dtype(operation.outputs[0][1])
    if native.available():
        weight = _weight(constants, factor, bias, dtype)
        return weight.channels_first if operation.type == "conv" else weight.channels_last
    if operation.type == "conv" and not has_bias and dtype == torch.float16:
        matrix = constants.tensor(factor).flatten(1)
        return lambda x: half_pointwise(x, matrix)
    raise Unfit(f"torch does it as it is: {native.status()[1]}")


def half_pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """A 1x1 convolution in half precision: x (N, C, *D), weight (R, C) -> (N, R, *D)."""
    if x.numel() != weight.shape[1]:  # half `mm` is far slower than widening the weight first
        return pointwise(x, weight.float())
    return torch.mv(weight, x.reshape(-1)).view(1, -1, *x.shape[2:])


def _is_product(graph: Graph, operation: Operation, factor: Known) -> bool:
    """Whether an op is a product of x, in half or single precision, with a weight (R, C, 1, ..)."""
    value, shape = partial(graph.value, operation), factor.type.shape
    if not {factor.type.dtype, operation.outputs[0][1].dtype} <= {"fp16", "fp32"} or 0 in shape:
        return False
    if operation.type == "matmul":
        transposed = (value("transpose_x", False), value("transpose_y", False))
        return len(shape) == 2 and transposed == (False, True)
    if operation.type == "linear":
        return len(shape) == 2
    axes = len(shape) - 2
    ones, zeros = [1] * axes, [0] * (2 * axes)
    pad, dilations = value("pad", zeros), value("dilations", ones)
    return (
        axes > 0
        and set(shape[2:]) == {1}
        and value("groups", 1) == 1
        and value("strides", ones) == ones
        and (value("pad_type", "valid") != "custom" or pad == zeros)
        and isinstance(dilations, list)
        and len(dilations) == axes
    )


def _weight(
    constants: Constants, factor: Known, bias: Known | None, dtype: torch.dtype
) -> native.Weight:
    """The weight for the compiled products, made once for all functions of the package."""
    key = ("weight", constants.identity(factor), constants.identity(bias), dtype)
    if key not in constants.shared:
        found = _compressed(constants, factor) or (_dense(constants, factor), None, 0)
        data, table, block = found
        if data.dtype not in native.KINDS or not native.pays(data.dtype, dtype):
            raise Unfit(f"no kernel for weights of {data.dtype} pays here")
        added = None if bias is None else constants.tensor(bias)
        _check(data, table, added, block)
        constants.shared[key] = native.Weight(data, dtype, table, added, block)
    return constants.shared[key]


def _check(data: Tensor, table: Tensor | None, bias: Tensor | None, block: int) -> None:
    """Raise ValueError unless table and bias have the lengths that the compiled code reads."""
    fits = bias is None or bias.shape == data.shape[:1]
    if data.dtype == torch.int8:
        fits = fits and table is not None and table.shape == data.shape[:1]
    elif block:
        fits = fits and table is not None and table.shape == (len(data), data.shape[1] * 2 // block)
    elif data.dtype == torch.uint8:
        fits = fits and table is not None and table.shape[1:] == (16,)
        fits = fits and table is not None and len(data) % len(table) == 0
    if not fits:
        raise ValueError(f"its table or bias does not fit a weight {data.dtype} {[*data.shape]}")


def _dense(constants: Constants, factor: Known) -> Tensor:
    """The matrix (R, C) in its stored precision or, if it is compressed, in its expanded one."""
    if isinstance(factor, Expansion):
        return constants.tensor(factor).flatten(1)
    return constants.stored(factor).flatten(1)


def _compressed(constants: Constants, factor: Known) -> tuple[Tensor, Tensor, int] | None:
    """(data, table, block) of a weight that can stay compressed: int8 or int4 by row, int4 by
    blocks of columns, palettes of 16. block: 0 but for int4 by blocks.
    """
    if not isinstance(factor, Expansion):
        return None
    operation, (rows, columns) = factor.operation, factor.type.sizes[:2]
    inputs: dict[str, Constant] = {}
    for key, (item,) in operation.inputs.items():
        value = constants.find(item)
        if not isinstance(value, Constant):
            return None
        inputs[key] = value
    if operation.type == "constexpr_blockwise_shift_scale":
        data, scale = inputs["data"], inputs["scale"]
        count, *others = scale.type.sizes
        blocks = prod(others)
        if count != rows or blocks not in others[:1] or "offset" in inputs or not blocks:
            return None
        scales = constants.stored(scale).reshape(rows, blocks)
        if scales.dtype == torch.float16 and not _are_small(scales):
            return None
        if data.type.dtype == "int8" and blocks == 1:
            return constants.stored(data).flatten(1), scales.flatten(), 0
        if data.type.dtype == "int4" and blocks == 1:
            return _nibbles(data, rows, columns, _multiples(scales.flatten()))
        block, rest = divmod(columns, blocks)
        # Plain kernels take longer over the 16 values of a block than over 32 halves.
        by_block = data.type.dtype == "int4" and block % 32 == 0 and rest == 0
        if by_block and native.instruction_set() != "plain":
            return _nibbles(data, rows, columns, scales, block)
        return None
    if operation.type == "constexpr_lut_to_dense" and "shape" not in inputs:
        indices, lut = inputs["indices"], inputs["lut"]
        groups, *others, entries, vector = lut.type.sizes
        by_rows = set(others) <= {1} and (entries, vector) == (16, 1) and rows % groups == 0
        if indices.type.dtype == "uint4" and by_rows:
            return _nibbles(indices, rows, columns, constants.stored(lut).reshape(groups, 16))
    return None


def _are_small(scales: Tensor) -> bool:
    """Whether the kernels round int8 and int4 times these scales, of half precision, as it does:
    below 256 no product is infinite."""
    least, most = scales.aminmax()
    return bool((least > -256) & (most < 256))  # and none is not a number


def _nibbles(
    values: Constant, rows: int, columns: int, table: Tensor, block: int = 0
) -> tuple[Tensor, Tensor, int] | None:
    """Packed nibbles, their table, and the block.

    None if they are not in a file, or if no kernel takes such rows.
    """
    packed = values.packed()
    if packed is None or columns % 32:
        return None
    return torch.from_numpy(packed).reshape(rows, columns // 2), table, block


def _multiples(scales: Tensor) -> Tensor:
    """The 16 values of int4 times each row's scale, rounded as in `shift_scale`: (R,) -> palettes
    (R, 16)."""
    integers = torch.arange(16.0)
    integers[8:] -= 16
    return (scales.float()[:, None] * integers).to(scales.dtype)
