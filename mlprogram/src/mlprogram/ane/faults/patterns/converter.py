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
    nonnegative,
    number,
    numbers,
    shape_of,
    size_of,
)
from mlprogram.ane.laws.graph import FLOATS, ProgramGraph, Seen
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import numpy as np

GATHERS = ("gather", "gather_along_axis", "gather_nd")
INVERSE_EPSILON = 1e-4  # what MIL's inverse adds where none is given
LEAST_SIZE = 256  # of a Fourier matrix: its angles in single precision err by 2e-4 from here on
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-3}  # of a Fourier matrix; fp16 itself rounds by 2.4e-4
TINY = float(np.finfo(np.float16).smallest_subnormal)
#: What makes integers that 16 bits hold: positions, or truth values.
SMALL = ("argsort", "topk", "reduce_argmax", "reduce_argmin", "shape", "non_zero", "one_hot")


def reciprocal_epsilon(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "inverse"):
        epsilon = number(graph, operation, "epsilon")
        if (epsilon := INVERSE_EPSILON if epsilon is None else epsilon) > 0:
            yield Seen(f"an inverse of x + {epsilon:g}", operation)


def atan2_half_plane(graph: ProgramGraph) -> Iterator[Seen]:
    """The quotient whose divisor is moved off zero by a constant, whatever its sign."""
    for operation in each(graph, "atan"):
        quotient = _made(graph, operation, "x", "real_div")
        moved = quotient and _made(graph, quotient, "y", "add")
        shift = moved and _made(graph, moved, "y", "mul")
        by = number(graph, shift, "y") if shift else None
        if by is not None and 0 < by < 1e-6 and _made(graph, shift, "x", "cast"):
            yield Seen(f"an atan2 whose divisor is moved by +{by:g} near zero", operation)


def triu_infinite(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _without_band(graph, "upper", "upper triangle", lower=True)


def tril_infinite(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _without_band(graph, "lower", "lower triangle", lower=False)


def _without_band(graph: ProgramGraph, kept: str, words: str, lower: bool) -> Iterator[Seen]:
    """x minus the band of x that goes all the way to one side."""
    whole = "lower" if lower else "upper"
    for operation in each(graph, "sub"):
        band = _made(graph, operation, "y", "band_part")
        if not band or graph.item(band, "x") != graph.item(operation, "x"):
            continue
        sides = {key: number(graph, band, key) for key in ("lower", "upper")}
        if sides[whole] == -1 and sides[kept] != -1 and operation.outputs[0][1].dtype in FLOATS:
            yield Seen(f"the {words} as x - band_part(x)", operation)


def narrow_empty(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "slice_by_index"):
        begin, end = numbers(graph, operation, "begin"), numbers(graph, operation, "end")
        steps = numbers(graph, operation, "stride") or [1] * len(end)
        masks = [numbers(graph, operation, key) for key in ("begin_mask", "end_mask")]
        if any(True in mask for mask in masks) or len(begin) != len(end):
            continue
        shape = operation.outputs[0][1].shape
        for axis, (first, last, step) in enumerate(zip(begin, end, steps, strict=False)):
            if last == 0 and first and step > 0 and len(shape) == len(end) and shape[axis] == 0:
                yield Seen(f"a slice of axis {axis} from {first} to 0, which is empty", operation)
                break


def diagonal_matrix(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "band_part"):
        rank = len(shape_of(graph, operation, "x"))
        if rank == 2 and [number(graph, operation, key) for key in ("lower", "upper")] == [0, 0]:
            yield Seen("a diagonal that is left in its matrix", operation)


def roll_negative(graph: ProgramGraph) -> Iterator[Seen]:
    """A size, read off at run time, less a negative shift's remainder by it."""
    for operation in each(graph, "sub"):
        remainder = _made(graph, operation, "y", "mod")
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


def sentinel_added(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "softmax"):
        total = _made(graph, operation, "x", "add")
        axis = int(number(graph, operation, "axis") or 0)
        for key in "xy" if total else "":
            mask = graph.constant(graph.item(total, key)) if total else None
            if mask is None or not mask.type.shape or not _rows_hidden(mask, axis, graph, operation):
                continue
            yield Seen("a softmax of rows to which -inf is added throughout", operation)


def _rows_hidden(mask: Constant, axis: int, graph: ProgramGraph, softmax: Operation) -> bool:
    if mask.type.dtype != "fp16":
        return False
    rank, array = len(shape_of(graph, softmax, "x")), mask.array()
    along = axis % rank - (rank - array.ndim)  # the mask's axis; it may have fewer
    hidden = np.isneginf(array)
    return bool((hidden.all(axis=along) if along >= 0 else hidden).any())


def sentinel_multiplied(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "mul"):
        if operation.outputs[0][1].dtype != "fp16":
            continue
        for key in "xy":
            constant = graph.constant(graph.item(operation, key))
            if constant is not None and np.isinf(constant.array()).any():
                yield Seen("a product with infinity, which is not a number at 0", operation)


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


def unsigned_data(graph: ProgramGraph) -> Iterator[Seen]:
    for operation, cast in _narrowed(graph, "uint16", *GATHERS, "squeeze"):
        if not nonnegative(graph, graph.item(cast, "x")):
            yield Seen(f"a {operation.type} of numbers that become uint16", operation)


def gather_narrowed(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _wrapping(graph, *GATHERS)


def squeeze_narrowed(graph: ProgramGraph) -> Iterator[Seen]:
    yield from _wrapping(graph, "squeeze")


def _wrapping(graph: ProgramGraph, *types: str) -> Iterator[Seen]:
    """Data of int32, which may be beyond 16 bits, that is cast to int16 for an op."""
    for operation, cast in _narrowed(graph, "int16", *types):
        source = graph.item(cast, "x")
        type_ = graph.type(source)
        if type_ is not None and type_.dtype == "int32" and not _small(graph, source):
            yield Seen(f"a {operation.type} of int32 that become int16", operation)


def _narrowed(
    graph: ProgramGraph, dtype: str, *types: str
) -> Iterator[tuple[Operation, Operation]]:
    """Ops whose data is cast to `dtype` for them, and cast back after, with that cast."""
    for operation in each(graph, *types):
        cast = _made(graph, operation, "x", "cast")
        if cast and cast.outputs[0][1].dtype == dtype:
            yield operation, cast


def _small(graph: ProgramGraph, item: Item) -> bool:
    """Whether 16 bits hold integers, as far as the op that made them tells."""
    maker = graph.maker(item)
    if maker is None:
        return False
    if maker.type == "cast":
        type_ = graph.type(graph.item(maker, "x"))
        return type_ is not None and type_.dtype in ("bool", "int8", "uint8", "int16")
    return maker.type in SMALL


def topk_positions(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "topk"):
        dtype = operation.outputs[-1][1].dtype
        if dtype not in ("int16", "uint16") or len(operation.outputs) < 2:
            continue
        axis = number(graph, operation, "axis")
        size = size_of(graph, operation, "x", -1 if axis is None else int(axis))
        if size - 1 > np.iinfo(dtype).max:
            yield Seen(f"positions among {size:,} in {dtype}", operation)


def clamp_bounds_cut(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "clip"):
        bounds = [number(graph, operation, key) for key in ("alpha", "beta")]
        between = [bound for bound in bounds if bound and abs(bound) < 1e9 and bound % 1]
        readers = graph.readers.get(operation.outputs[0][0], ())
        cut = bool(readers) and all(_casts_to(graph, one, ("int32",)) for one in readers)
        if between and cut and _from_integers(graph, graph.item(operation, "x")):
            yield Seen(f"integers between {bounds[0]:g} and {bounds[1]:g}, cut", operation)


def clamp_integer(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "clip"):
        bounds = [number(graph, operation, key) for key in ("alpha", "beta")]
        whole = all(bound is None or bound % 1 == 0 for bound in bounds)
        if (
            whole
            and _from_integers(graph, graph.item(operation, "x"))
            and _stays_float(graph, operation)
        ):
            yield Seen("a clip of integers that stays a float", operation)


def attention_mask_added(graph: ProgramGraph) -> Iterator[Seen]:
    """A mask of truth values that is added to the scores as ones and zeros."""
    for operation in each(graph, "softmax"):
        total = _made(graph, operation, "x", "add")
        if not total or not _made(graph, total, "x", "matmul"):
            continue
        constant, cast = graph.constant(graph.item(total, "y")), _made(graph, total, "y", "cast")
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
        mean = _made(graph, operation, "x", "reduce_mean")
        square = mean and _made(graph, mean, "x", "square")
        scaled = square and _made(graph, square, "x", "real_div")
        largest = scaled and _made(graph, scaled, "y", "reduce_max")
        if not largest or not _made(graph, largest, "x", "abs"):
            continue
        epsilon = number(graph, operation, "y")
        if epsilon:
            yield Seen(f"{epsilon:g} that is added after x is scaled by its largest", operation)


def root_of_square(graph: ProgramGraph) -> Iterator[Seen]:
    """The identity that stands for sqrt(x ** 2); what a function returns as given is another."""
    for operation in each(graph, "identity"):
        item, (name, type_) = graph.item(operation, "x"), operation.outputs[0]
        returned = item in graph.function.inputs and name in graph.outputs
        if type_.dtype in FLOATS and not returned and not nonnegative(graph, item):
            yield Seen("an identity of numbers that may be negative", operation)


def gelu_slope(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "gelu"):
        if graph.value(operation, "mode") == "SIGMOID_APPROXIMATION":
            yield Seen("x * sigmoid(1.702 * x)", operation)


def _made(graph: ProgramGraph, operation: Operation, key: str, by: str) -> Operation | None:
    """The op of type `by` that made an input; None if another did."""
    maker = graph.maker(graph.item(operation, key))
    return maker if maker is not None and maker.type == by else None


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
    if not prod(values.shape) or not np.all(values):
        return False
    divisors = 1 / values.astype(np.float64) if quotient.type == "mul" else values
    return bool(np.allclose(divisors, np.round(divisors), rtol=1e-6, atol=0))


def _stays_float(graph: ProgramGraph, operation: Operation) -> bool:
    """Whether no reader casts a result to integers, which would make it what it should be."""
    name = operation.outputs[0][0]
    readers = graph.readers.get(name, [])
    whole = (*(f"int{bits}" for bits in (8, 16, 32)), "uint8", "uint16", "bool")
    return name in graph.outputs or not any(_casts_to(graph, one, whole) for one in readers)


PATTERNS: tuple[Callable[[ProgramGraph], Iterator[Seen]], ...] = (
    reciprocal_epsilon,
    atan2_half_plane,
    triu_infinite,
    tril_infinite,
    narrow_empty,
    diagonal_matrix,
    roll_negative,
    div_floor_integer,
    div_trunc_integer,
    floor_divide_integer,
    sentinel_added,
    sentinel_multiplied,
    matmul_batch_lost,
    fourier_matrix,
    unsigned_data,
    gather_narrowed,
    squeeze_narrowed,
    topk_positions,
    clamp_bounds_cut,
    clamp_integer,
    attention_mask_added,
    rms_norm_epsilon,
    root_of_square,
    gelu_slope,
)
