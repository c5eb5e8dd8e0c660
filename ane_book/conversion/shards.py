"""How a model is cut: layers into packages by bytes, the vocabulary into parts by rows."""

from itertools import pairwise
from math import prod
import re

from ane_book.config import DecoderConfig
from ane_book.errors import InvalidInput
from ane_book.weights import tensor_shapes

__all__ = ["head_splits", "layer_bytes", "layer_ranges", "parse_bytes"]

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
FP16_BYTES = 2


def parse_bytes(text: str | int) -> int:
    """Bytes from "250MB", "1GB" or a number; units are powers of ten."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?B?)\s*", str(text).upper())
    if not match or match[2] not in UNITS:
        raise InvalidInput(f"{text!r} is not a size; write it like 250MB or 1GB")
    return int(float(match[1]) * UNITS[match[2]])


def layer_bytes(config: DecoderConfig) -> int:
    """Weight bytes of one layer in fp16."""
    shapes = tensor_shapes(config).items()
    return FP16_BYTES * sum(prod(shape) for name, shape in shapes if ".layers.0." in name)


def layer_ranges(config: DecoderConfig, limit: int) -> list[range]:
    """The layers of each shard: as many as fit in `limit` bytes, evenly spread.

    Raises InvalidInput when not even one layer fits.
    """
    each = layer_bytes(config)
    if each > limit:
        raise InvalidInput(
            f"one layer has {each / 1e6:.1f} MB of weights, more than the shard limit of "
            f"{limit / 1e6:.1f} MB; raise the limit"
        )
    return _even(config.num_layers, limit // each)


def head_splits(vocabulary: int, rows: int) -> tuple[int, ...]:
    """Rows of each part of the vocabulary: at most `rows`, evenly spread."""
    if rows < 1:
        raise InvalidInput(f"a part of the vocabulary needs at least one row, not {rows}")
    return tuple(len(part) for part in _even(vocabulary, rows))


def _even(count: int, most: int) -> list[range]:
    """0..count-1 in as few ranges of at most `most` as it takes, sizes differing by one at most."""
    parts = -(-count // most)
    cuts = [count * i // parts for i in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]
