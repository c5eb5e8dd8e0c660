"""Faults of coremltools' converter, as packages show them; each was run here.

research/converter-faults.json has what each version made of each; tests/ane/faults/_converters.py
the PyTorch modules.
"""

from collections.abc import Callable, Iterator
from math import prod

from mlprogram.ane.faults.patterns.known import (
    Item,
    each,
    integers,
    made_by,
    nonnegative,
    number,
    numbers,
    shape_of,
)
from mlprogram.ane.laws.graph import FLOATS, ProgramGraph, Seen
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import numpy as np

INVERSE_EPSILON = 1e-4  # what MIL's inverse adds where none is given
LEAST_SIZE = 256  # of a Fourier matrix: its angles in single precision err by 2e-4 from here on
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-3}  # of a Fourier matrix; fp16 itself rounds by 2.4e-4


def reciprocal_epsilon(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "inverse"):
        epsilon = number(graph, operation, "epsilon")
        if (epsilon := INVERSE_EPSILON if epsilon is None else epsilon) > 0:
            yield Seen(f"an inverse of x + {epsilon:g}", operation)


def atan2_zero(graph: ProgramGraph) -> Iterator[Seen]:
    """The quotient whose divisor is moved off zero by a constant, whatever its sign."""
    for operation in each(graph, "atan"):
        quotient = made_by(graph, operation, "x", "real_div")
        moved = quotient and made_by(graph, quotient, "y", "add")
        shift = moved and made_by(graph, moved, "y", "mul")
        if not shift or not made_by(graph, shift, "x", "cast"):
            continue
        by = number(graph, shift, "y")
        if by is not None and 0 < by < 1e-6:
            yield Seen(f"an atan2 whose divisor is moved by +{by:g} near zero", operation)


def band_infinite(graph: ProgramGraph) -> Iterator[Seen]:
    """x minus the band of x that goes all the way to one side, but not to the other."""
    for operation in each(graph, "sub"):
        band = made_by(graph, operation, "y", "band_part")
        if not band or graph.item(band, "x") != graph.item(operation, "x"):
            continue
        open_sides = [number(graph, band, key) == -1 for key in ("lower", "upper")]
        if sum(open_sides) == 1 and operation.outputs[0][1].dtype in FLOATS:
            words = "upper" if open_sides[0] else "lower"
            yield Seen(f"the {words} triangle as x - band_part(x)", operation)


def narrow_empty(graph: ProgramGraph) -> Iterator[Seen]:
    """A slice that ends at 0, of an axis that is declared empty, or flexible."""
    for operation in each(graph, "slice_by_index"):
        begin, end = numbers(graph, operation, "begin"), numbers(graph, operation, "end")
        steps = numbers(graph, operation, "stride") or [1] * len(end)
        masks = [numbers(graph, operation, key) for key in ("begin_mask", "end_mask")]
        if any(True in mask for mask in masks) or len(begin) != len(end):
            continue
        shape = operation.outputs[0][1].shape
        for axis, (first, last, step) in enumerate(zip(begin, end, steps, strict=False)):
            if last == 0 and first and step > 0 and len(shape) == len(end) and not shape[axis]:
                yield Seen(f"a slice of axis {axis} from {first} to 0, which is empty", operation)
                break


def diagonal_matrix(graph: ProgramGraph) -> Iterator[Seen]:
    """But for a trace: the sum of the whole matrix is that of its diagonal."""
    for operation in each(graph, "band_part"):
        sides = [number(graph, operation, key) for key in ("lower", "upper")]
        if sides != [0, 0] or len(shape_of(graph, operation, "x")) != 2:
            continue
        readers = graph.readers.get(operation.outputs[0][0], ())
        summed = [one.type == "reduce_sum" and prod(_sizes(one)) == 1 for one in readers]
        if not summed or not all(summed):
            yield Seen("a diagonal that is left in its matrix", operation)


def _sizes(operation: Operation) -> list[int]:
    """The sizes of a result, flexible ones as 0."""
    return [size or 0 for size in operation.outputs[0][1].shape]


def roll_negative(graph: ProgramGraph) -> Iterator[Seen]:
    """A size, read off at run time, less a negative shift's remainder by it."""
    for operation in each(graph, "sub"):
        remainder = made_by(graph, operation, "y", "mod")
        shift = number(graph, remainder, "x") if remainder else None
        if shift is None or shift >= 0 or remainder is None:
            continue
        if graph.item(remainder, "y") == graph.item(operation, "x"):
            yield Seen(f"a roll by {int(shift)} along a flexible axis", remainder)


def div_floor_integer(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "floor_div"):
        if _of_integers(graph, operation) and _stays_float(graph, operation):
            yield Seen("a quotient of integers that stays a float", operation)


def div_trunc_integer(graph: ProgramGraph) -> Iterator[Seen]:
    """sign(q) * floor(q * sign(q)) of a quotient of integers."""
    for operation in each(graph, "mul"):
        rounded, sign = (graph.maker(graph.item(operation, key)) for key in "xy")
        if not rounded or not sign or (rounded.type, sign.type) != ("floor", "sign"):
            continue
        quotient = graph.maker(graph.item(sign, "x"))
        if quotient is None or quotient.type not in ("real_div", "mul"):
            continue
        if _of_integers(graph, quotient) and _stays_float(graph, operation):
            yield Seen("a quotient of integers, cut to whole numbers, stays a float", operation)


def floor_divide_integer(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "floor_div"):
        if not integers(operation.outputs[0][1]):
            continue
        for reader in graph.readers.get(operation.outputs[0][0], ()):
            if _casts_to(graph, reader, FLOATS) and _stays_float(graph, reader):
                yield Seen("a quotient of integers that becomes a float", reader)


def matmul_batch_lost(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "matmul"):
        x, y = (shape_of(graph, operation, key) for key in "xy")
        if len(x) != 1 or len(y) < 3:
            continue
        wide = -2 if graph.value(operation, "transpose_y", False) else -1
        product = (*y[:-2], y[wide])
        declared = operation.outputs[0][1].shape
        if declared != product:
            yield Seen(f"a product of shape {product} that is declared as {declared}", operation)


def fourier_matrix(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "matmul", "conv"):
        for key in ("x", "y", "weight"):
            constant = graph.constant(graph.item(operation, key))
            error = _fourier_error(constant) if constant is not None else 0.0
            if error:
                yield Seen(f"a Fourier matrix that is wrong by {error:.1g}", operation)


def _fourier_error(constant: Constant) -> float:
    """How far cos or sin of 2 pi j k / n are off in the last rows; 0 if it is another matrix."""
    sizes = [size for size in constant.type.sizes if size != 1]
    tolerance = TOLERANCES.get(constant.type.dtype)
    if len(sizes) != 2 or tolerance is None or sizes[1] < LEAST_SIZE:
        return 0.0
    rows, n = sizes
    if rows not in (n, n // 2 + 1) or constant.type.shape[-1] != n:
        return 0.0
    array = constant.array().reshape(rows, n)
    for wave, first in ((np.cos, 1), (np.sin, 0)):
        if np.all(array[0] == first) and np.allclose(array[1], _wave(wave, 1, n), atol=2e-3):
            found = max(np.abs(array[j] - _wave(wave, j, n)).max() for j in (rows // 2, rows - 1))
            return float(found) if found > tolerance else 0.0
    return 0.0


def _wave(wave: Callable, row: int, n: int) -> np.ndarray:
    return wave(2 * np.pi * (row * np.arange(n) % n) / n)


def clamp_bounds_cut(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "clip"):
        between = [bound for bound in _bounds(graph, operation) if abs(bound) < 1e9 and bound % 1]
        readers = graph.readers.get(operation.outputs[0][0], ())
        cut = bool(readers) and all(_casts_to(graph, one, ("int32",)) for one in readers)
        if between and cut and _from_integers(graph, graph.item(operation, "x")):
            yield Seen(f"integers that are held to {between[0]:g}, and cut", operation)


def _bounds(graph: ProgramGraph, clip: Operation) -> list[float]:
    bounds = [number(graph, clip, key) for key in ("alpha", "beta")]
    return [bound for bound in bounds if isinstance(bound, float)]


def clamp_integer(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "clip"):
        whole = all(bound % 1 == 0 for bound in _bounds(graph, operation))
        if (
            whole
            and _from_integers(graph, graph.item(operation, "x"))
            and _stays_float(graph, operation)
        ):
            yield Seen("a clip of integers that stays a float", operation)


def attention_mask_added(graph: ProgramGraph) -> Iterator[Seen]:
    """A mask of truth values that is added to the scores as ones and zeros."""
    for operation in each(graph, "softmax"):
        total = made_by(graph, operation, "x", "add")
        if not total or not made_by(graph, total, "x", "matmul"):
            continue
        constant, cast = graph.constant(graph.item(total, "y")), made_by(graph, total, "y", "cast")
        from_bool = cast and graph.type(graph.item(cast, "x"))
        if (constant is not None and _ones_and_zeros(constant)) or (
            from_bool and from_bool.dtype == "bool"
        ):
            yield Seen("attention whose mask of 0 and 1 is added to the scores", operation)


def _ones_and_zeros(constant: Constant) -> bool:
    array = constant.array()
    return array.size > 1 and bool(np.isin(array, (0, 1)).all()) and 0 < array.mean() < 1


def rms_norm_epsilon(graph: ProgramGraph) -> Iterator[Seen]:
    """The mean of squares of x over its largest number, to which an epsilon is added."""
    for operation in each(graph, "add"):
        mean = made_by(graph, operation, "x", "reduce_mean")
        square = mean and made_by(graph, mean, "x", "square")
        scaled = square and made_by(graph, square, "x", "real_div")
        largest = scaled and made_by(graph, scaled, "y", "reduce_max")
        if not largest or not made_by(graph, largest, "x", "abs"):
            continue
        epsilon = number(graph, operation, "y")
        if epsilon:
            yield Seen(f"{epsilon:g} that is added after x is scaled by its largest", operation)


def root_of_square(graph: ProgramGraph) -> Iterator[Seen]:
    """The identity that stands for sqrt(x ** 2).

    An identity that a function returns, or that nothing reads, comes of other passes too.
    """
    for operation in each(graph, "identity"):
        name, type_ = operation.outputs[0]
        used = name in graph.readers and name not in graph.outputs
        if used and type_.dtype in FLOATS and not nonnegative(graph, graph.item(operation, "x")):
            yield Seen("an identity of numbers that may be negative", operation)


def gelu_slope(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "gelu"):
        if graph.value(operation, "mode") == "SIGMOID_APPROXIMATION":
            yield Seen("x * sigmoid(1.702 * x)", operation)


def log_of_softmax(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "log"):
        if made_by(graph, operation, "x", "softmax"):
            yield Seen("the log of a softmax, which is lost where that is too small", operation)


def average_overhang(graph: ProgramGraph) -> Iterator[Seen]:
    """A window past the padded input, which ceil_mode alone makes, counts as a whole one."""
    for operation in each(graph, "avg_pool"):
        counted = not graph.value(operation, "exclude_padding_from_average", False)
        if not counted or not graph.value(operation, "ceil_mode", False):
            continue
        kernel, strides, pad = (
            [size for size in numbers(graph, operation, key) if isinstance(size, int)]
            for key in ("kernel_sizes", "strides", "pad")
        )
        strides, pad = strides or [1] * len(kernel), pad or [0] * 2 * len(kernel)
        ends = zip(pad[::2], pad[1::2], strict=False)
        sizes, made = shape_of(graph, operation, "x")[2:], operation.outputs[0][1].shape[2:]
        windows = zip(sizes, made, kernel, strides, ends, strict=False)
        for axis, (size, count, width, step, (before, after)) in enumerate(windows, 2):
            if size and count and (count - 1) * step + width > before + size + after:
                yield Seen(f"averages of windows past the end of axis {axis}", operation)
                break


def scale_zero(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        scale = graph.constant(graph.item(operation, "scale"))
        if scale is None or np.all(scale.array()):
            continue
        lost = np.asarray(scale.array()) == 0
        if _integers_of(graph, operation, lost).any():
            yield Seen(f"{np.count_nonzero(lost):,} scales that are zero", operation)


def _integers_of(graph: ProgramGraph, operation: Operation, blocks: np.ndarray) -> np.ndarray:
    """Which weights of some blocks, one a scale, are another integer than the one for zero."""
    affine = operation.type == "constexpr_affine_dequantize"
    data = graph.constant(graph.item(operation, "quantized_data" if affine else "data"))
    zero = graph.constant(graph.item(operation, "zero_point" if affine else "offset"))
    if data is None:
        return np.zeros(())
    array, zeros = data.array(), np.zeros(()) if zero is None else zero.array()
    axis = int(number(graph, operation, "axis") or 0) if affine else None
    return _spread(blocks, array.shape, axis) & (array != _spread(zeros, array.shape, axis))


def _spread(blocks: np.ndarray, shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """One value a block, as one a weight; those of one axis if it is named.

    Blocks that do not divide the shape, which nothing converted has, are taken as zeros.
    """
    if axis is not None and blocks.ndim == 1 and -len(shape) <= axis < len(shape):
        blocks = blocks.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    sizes = list(zip(shape, blocks.shape, strict=False)) if blocks.ndim else []
    if blocks.ndim not in (0, len(shape)) or any(not b or whole % b for whole, b in sizes):
        return np.zeros((), blocks.dtype)
    for i, (whole, b) in enumerate(sizes):
        blocks = np.repeat(blocks, whole // b, i)
    return blocks


def _casts_to(graph: ProgramGraph, operation: Operation, dtypes) -> bool:
    return operation.type == "cast" and operation.outputs[0][1].dtype in dtypes


def _from_integers(graph: ProgramGraph, item: Item) -> bool:
    """Whether floats are integers that were cast."""
    maker = graph.maker(item)
    cast = maker is not None and maker.type == "cast"
    return cast and integers(graph.type(graph.item(maker, "x"))) if maker else False


def _of_integers(graph: ProgramGraph, quotient: Operation) -> bool:
    """Whether a quotient is of integers: one was cast at least, the other cast or constant.

    coremltools writes x / 2 as x * 0.5, so the constant factor of a product may be its inverse.
    """
    keys = [graph.item(quotient, key) for key in "xy"]
    cast = [_from_integers(graph, item) for item in keys]
    whole = [graph.constant(item) is not None and _whole(graph, quotient, item) for item in keys]
    return any(cast) and all(a or b for a, b in zip(cast, whole, strict=True))


def _whole(graph: ProgramGraph, quotient: Operation, item: Item) -> bool:
    constant = graph.constant(item)
    values = constant.array() if constant is not None else np.empty(0)
    if values.dtype.kind not in "fiu" or not values.size or not np.all(values):
        return False
    divisors = 1 / values.astype(np.float64) if quotient.type == "mul" else values
    step = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0
    return bool(np.allclose(divisors, np.round(divisors), rtol=step, atol=0))


def _stays_float(graph: ProgramGraph, operation: Operation) -> bool:
    """Whether no reader casts a result to integers, which would make it what it should be."""
    name = operation.outputs[0][0]
    readers = graph.readers.get(name, [])
    whole = (*(f"int{bits}" for bits in (8, 16, 32)), "uint8", "uint16", "bool")
    return name in graph.outputs or not any(_casts_to(graph, one, whole) for one in readers)
