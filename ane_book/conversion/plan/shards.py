"""How a model is cut: layers into packages by bytes, the vocabulary into parts by rows.

All sizes are those of the weight files as they will be written, quantised or not.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, prod

from ane_book.conversion.quantize import SCHEMES, Scheme
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find
from ane_book.models.base.architecture import FULL, TensorSpec
from mlprogram.package.weight_file import stored_bytes
from mlprogram.package.weight_files import ALIGNMENT, file_sizes


def blob_bytes(shape: tuple[int, ...], scheme: Scheme) -> list[int]:
    """Bytes of each operand of a projection's weight (O, C, ...), as `quantize.encode` makes it.

    With "auto" it is the matrix's share of the budget, which all together do not exceed.
    """
    if scheme.form == "plain":
        return [stored_bytes("fp16", shape)]
    if scheme.form == "stored":  # at most: what a file has as integers takes less
        return [stored_bytes("fp16", shape) + 2 * ALIGNMENT]
    if scheme.form == "auto":  # two operands, each of which may have to be aligned
        return [ceil(prod(shape) * scheme.budget / 8) + ALIGNMENT, ALIGNMENT]
    outputs, inputs = shape[:2]
    groups = scheme.groups(outputs)
    if scheme.form == "linear":
        scales = groups * scheme.blocks(inputs)
        return [stored_bytes(f"int{scheme.bits}", shape), stored_bytes("fp16", (scales,))]
    palettes = (groups, 1 << scheme.bits)
    return [stored_bytes(f"uint{scheme.bits}", shape), stored_bytes("fp16", palettes)]


def file_bytes(blobs: Iterable[int]) -> int:
    """Bytes of the weight files of a package with blobs of so many bytes, together."""
    return sum(file_sizes(blobs))


def layer_blobs(config: DecoderConfig, scheme: Scheme, kind: str = FULL) -> list[int]:
    """Bytes of every blob of a layer of some kind, in the order in which they are stored."""
    parameters = find(config.architecture).parameters(config, kind).values()
    return [blob for parts in parameters for blob in _blobs(parts, scheme)]


def trunk_blobs(config: DecoderConfig, scheme: Scheme, kind: str) -> tuple[list[int], list[int]]:
    """Bytes of a layer's blobs before its mixture of experts, and of those after it."""
    architecture = find(config.architecture)
    sides: tuple[list[int], list[int]] = [], []
    mixture = architecture.signature(config, kind).mixture
    after = mixture.after if mixture else ()
    for name, parts in architecture.parameters(config, kind).items():
        if not name.startswith("mixture."):
            sides[name.startswith(after)].extend(_blobs(parts, scheme))
    return sides


def expert_blobs(config: DecoderConfig, scheme: Scheme) -> list[int]:
    """Bytes of every blob of an expert that is a program; all experts are equal."""
    parameters = find(config.architecture).parameters(config).items()
    one = [parts for name, parts in parameters if name.startswith("mixture.groups.0.")]
    return [blob for parts in one for blob in _blobs(parts, scheme)]


def _blobs(parts: tuple[TensorSpec, ...], scheme: Scheme) -> list[int]:
    """Bytes of every blob of one parameter."""
    inputs = parts[0].given[1:]
    rows = sum(part.given[0] for part in parts)
    chosen = scheme if len(inputs) == 1 else SCHEMES["none"]  # only matrices are compressed
    return blob_bytes((rows, *inputs), chosen)


def end_blobs(config: DecoderConfig, end: str) -> list[int]:
    """Bytes of every blob before the "first" layer, or after the "last"."""
    outer = find(config.architecture).outer(config).items()
    shapes = [tensor.shape for name, tensor in outer if name.startswith(f"{end}.")]
    return [blob for shape in shapes for blob in blob_bytes(shape, SCHEMES["none"])]


def layer_ranges(
    config: DecoderConfig, limit: int, scheme: Scheme = SCHEMES["none"]
) -> list[range]:
    """The layers of each shard: as many as fit in `limit` bytes, evenly spread.

    Raises InvalidInput when not even one layer fits.
    """
    kinds = set(find(config.architecture).kinds(config))
    ends = end_blobs(config, "first") + end_blobs(config, "last")
    blobs = max((layer_blobs(config, scheme, kind) for kind in kinds), key=file_bytes)
    one = file_bytes(ends + blobs)
    if one > limit:
        raise InvalidInput(
            f"one layer has {one / 1e6:.1f} MB of weights, more than the shard limit of "
            f"{limit / 1e6:.1f} MB; raise the limit"
        )
    more = file_bytes(ends + blobs * 2) - one
    return even_ranges(config.num_layers, 1 + (limit - one) // more)


def head_splits(vocabulary: int, rows: int) -> tuple[int, ...]:
    """Rows of each part of the vocabulary: at most `rows`, evenly spread."""
    return tuple(len(part) for part in even_ranges(vocabulary, rows))


def even_ranges(count: int, most: int) -> list[range]:
    """0..count-1 in as few ranges of at most `most` as it takes, sizes differing by one at most."""
    parts = -(-count // most)
    cuts = [count * i // parts for i in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]
