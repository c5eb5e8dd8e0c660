"""Rules on weights: compression, constants with infinity or NaN, the size of a package."""

from collections import Counter
from collections.abc import Iterator

from mlprogram.ane import claims
from mlprogram.ane.laws.graph import ProgramGraph, Seen, sizes
from mlprogram.package.function import Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant
import numpy as np

PALETTES = ("constexpr_lut_to_dense", "constexpr_lut_to_sparse")

#: Floating-point dtype -> the integer dtype of its bits, and the mask of its exponent bits, which
#: are all set in infinity and NaN.
EXPONENTS = {
    "fp16": (np.uint16, 0x7C00), "bf16": (np.uint16, 0x7F80),
    "fp32": (np.uint32, 0x7F800000), "fp64": (np.uint64, 0x7FF0000000000000),
}  # fmt: skip
PIECE = 1 << 20  # elements checked at a time, so that they stay in the CPU's cache


def scale_per_block(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        weight = graph.weight(operation)
        if weight is None or weight.compressed is None:
            continue
        scale = graph.type(graph.item(weight.compressed, "scale"))
        if weight.compressed.type != "constexpr_blockwise_shift_scale" or scale is None:
            continue
        along = [axis for axis, size in enumerate(scale.shape) if size != 1]
        if any(axis != weight.outputs for axis in along):
            data, blocks = graph.type(graph.item(weight.compressed, "data")), sizes(scale.shape)
            whole = sizes(weight.type.shape)
            text = f"{data and data.dtype}, scales {blocks} for a weight of {whole}"
            yield Seen(text, operation)


def palette_slow(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation, lut in _palettes(graph):
        if lut[-2] == 16 and lut[-1] == 1:
            yield Seen(f"palettes of 16, {_shape(operation)}", operation)


def palette_vector(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation, lut in _palettes(graph):
        if lut[-1] > 1:
            yield Seen(f"palettes of {lut[-1]} numbers an entry, {_shape(operation)}", operation)


def palette_state(graph: ProgramGraph, _) -> Iterator[Seen]:
    if graph.function.states and any(lut[-2] == 16 for _, lut in _palettes(graph)):
        states = len(graph.function.states)
        yield Seen(f"4-bit palettes beside {states} state{'s' * (states > 1)}")


def palette_scale(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.compressed():
        inner = graph.maker(graph.item(operation, "data"))
        scaled = operation.type == "constexpr_blockwise_shift_scale"
        if scaled and inner is not None and inner.type in PALETTES:
            yield Seen(f"a scale upon palettes, {_shape(operation)}", operation)


def _palettes(graph: ProgramGraph) -> Iterator[tuple[Operation, tuple[int, ...]]]:
    """Yield palettised weights with their tables' shape: (..., entries, numbers in an entry)."""
    for operation in graph.compressed():
        lut = graph.type(graph.item(operation, "lut"))
        if lut is None:
            continue
        old = operation.type == "constexpr_lut_to_dense" and len(lut.shape) == 1  # iOS 16
        yield operation, (*lut.sizes, 1) if old else lut.sizes


def _shape(operation: Operation) -> str:
    return sizes(operation.outputs[-1][1].shape)


def non_finite(graph: ProgramGraph, _) -> Iterator[Seen]:
    looked: set[tuple[str, int]] = set()
    for operation, constant in graph.constants():
        if constant.blob in looked:
            continue
        looked.add(constant.blob or (operation.name, id(constant)))
        if constant.type.dtype in EXPONENTS and (kind := _wrong(constant)):
            yield Seen(f"a constant {constant.type} holds {kind}", operation)


def _wrong(constant: Constant) -> str:
    """Say what is wrong: infinity or NaN, or numbers that overflow in half precision; or ""."""
    integer, mask = EXPONENTS[constant.type.dtype]
    array = np.ascontiguousarray(constant.array()).reshape(-1)
    for start in range(0, array.size, PIECE):
        piece = array[start : start + PIECE]
        if ((piece.view(integer) & integer(mask)) == mask).any():
            return "infinity or NaN"
        if constant.type.dtype in ("fp32", "fp64"):
            largest = float(np.abs(piece).max(initial=0))
            if largest >= 65_520:  # what rounds to 65,504 is below
                return f"{largest:.2g}, which half precision makes infinite"
    return ""


# --- of a package


def weight_bytes(package: Package) -> int:
    """Bytes of weights in the files of a package; weights that functions share count once."""
    return sum(constant.stored_bytes for _, constant in package.weights)


def largest_file(package: Package) -> int:
    """Bytes of weights in the package's largest weight file."""
    sizes: Counter[str] = Counter()
    for _, constant in package.weights:
        assert constant.blob is not None, "Package.weights has those of files alone"
        sizes[constant.blob[0]] += constant.stored_bytes
    return max(sizes.values(), default=0)


def program_250mb(package: Package, most: int) -> Iterator[Seen]:
    size = weight_bytes(package)
    if size > most and largest_file(package) <= claims.find("program-1gb").number:
        yield Seen(f"{size / 1e6:,.1f} MB of weights")


def program_1gb(package: Package, most: int) -> Iterator[Seen]:
    size = largest_file(package)
    if most < size <= claims.find("program-2gb").number:
        yield Seen(_file(size))


def program_2gb(package: Package, most: int) -> Iterator[Seen]:
    if (size := largest_file(package)) > most:
        yield Seen(_file(size))


def _file(size: int) -> str:
    return f"{size / 1e6:,.1f} MB of weights in one file"


def program_small(package: Package, least: int) -> Iterator[Seen]:
    size = weight_bytes(package)
    if size < least:
        yield Seen(f"{size / 1e6:,.1f} MB of weights")


RULES = (
    scale_per_block, palette_slow, palette_vector, palette_state, palette_scale, non_finite,
)  # fmt: skip
PACKAGE_RULES = (program_250mb, program_1gb, program_2gb, program_small)
