"""The layout of a GGUF file: its header read with every length checked against the file.

    magic "GGUF", version, number of tensors, number of metadata entries      (little endian)
    metadata    key, type, value; strings are a length and UTF-8, arrays a type, a length and items
    tensors     name, dimensions (fastest first), type, offset from the start of the data
    data        aligned blocks, e.g. Q8_0: 32 weights as one fp16 scale and 32 int8

The package `gguf` knows the formats of quantised blocks and dequantises them. Its reader makes
four numpy views per token and per merge of the tokenizer, which is 200,000 objects and two seconds
here, and it takes the lengths in a file at their word; so the header is read here instead.

Reference: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from dataclasses import dataclass
import math
from pathlib import Path
import struct

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights import Shape
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
import numpy as np

__all__ = ["Tensor", "map_file", "read_header"]

#: Metadata types that are one number, as numpy has them.
SCALARS = {
    kind: np.dtype(kind.name.lower()).newbyteorder("<")
    for kind in GGUFValueType
    if kind not in (GGUFValueType.STRING, GGUFValueType.ARRAY)
}


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in the file, and how it is stored."""

    shape: Shape
    type: GGMLQuantizationType
    start: int  # bytes from the beginning of the file
    size: int  # bytes


def map_file(path: Path) -> np.ndarray:
    """The file's bytes, read when they are touched."""
    try:
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise InvalidWeights(f"{path}: cannot be mapped into memory: {error}") from None


class _Cursor:
    """Reads the header's values one after another, and never past the end of the file."""

    def __init__(self, data: np.ndarray, path: Path):
        self.data, self.path, self.at = memoryview(data), path, 0

    def take(self, count: int) -> memoryview:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise InvalidWeights(
                f"{self.path}: the header wants byte {self.at} of a file of {len(self.data)}; "
                "the file is cut short or damaged: get it again"
            )
        return self.data[start : self.at]

    def integer(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        try:
            return str(self.take(self.integer("Q")), "utf-8")
        except UnicodeDecodeError:
            raise InvalidWeights(f"{self.path}: damaged: text at {self.at} is not UTF-8") from None

    def value(self):
        """A metadata value with its type before it: str, int, float, bool or a list of these."""
        kind = self.integer("I")
        if kind != GGUFValueType.ARRAY:
            return self._items(kind, 1)[0]
        return self._items(self.integer("I"), self.integer("Q"))

    def _items(self, kind: int, count: int) -> list:
        if kind == GGUFValueType.STRING:
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise InvalidWeights(f"{self.path}: damaged: metadata of unknown type {kind}")
        dtype = SCALARS[kind]
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()


def read_header(data: np.ndarray, path: Path) -> tuple[dict, dict[str, Tensor]]:
    """Metadata by key, and tensors by GGUF name; all lie inside the file."""
    cursor = _Cursor(data, path)
    if bytes(cursor.take(4)) != b"GGUF":
        raise InvalidWeights(f"{path}: not a GGUF file (it does not start with GGUF)")
    version = cursor.integer("I")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version}; supported: 2 and 3, little endian")
    tensor_count, entry_count = cursor.integer("Q"), cursor.integer("Q")
    metadata = {}
    for _ in range(entry_count):
        key = cursor.string()
        metadata[key] = cursor.value()
    rows = [_read_row(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise InvalidWeights(f"{path}: damaged: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {row[0]: _locate(*row, start, len(data), path) for row in rows}
    if len(tensors) != len(rows):
        raise InvalidWeights(f"{path}: damaged: two tensors have the same name")
    return metadata, tensors


def _read_row(cursor: _Cursor) -> tuple[str, Shape, int, int]:
    """One line of the table of tensors: name, shape (reversed to (out, in)), type, offset."""
    name = cursor.string()
    rank = cursor.integer("I")
    if rank > 4:
        raise InvalidWeights(f"{cursor.path}: damaged: tensor {name} has {rank} dimensions")
    dimensions = [cursor.integer("Q") for _ in range(rank)]
    return name, tuple(reversed(dimensions)), cursor.integer("I"), cursor.integer("Q")


def _locate(name: str, shape: Shape, kind: int, offset: int, start: int, end: int, path: Path):
    """The tensor's type and its place in the file, which ends at byte `end`."""
    try:
        tensor_type = GGMLQuantizationType(kind)
        weights, size = GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError):
        raise UnsupportedModel(f"{path}: tensor {name} is of unknown type {kind}") from None
    if not shape or shape[-1] % weights:
        raise InvalidWeights(f"{path}: tensor {name}: {shape} is no whole number of blocks")
    tensor = Tensor(shape, tensor_type, start + offset, math.prod(shape) // weights * size)
    if tensor.start + tensor.size > end:
        raise InvalidWeights(
            f"{path}: tensor {name} ends at byte {tensor.start + tensor.size} of a file of {end}; "
            "the file is cut short: get it again"
        )
    return tensor
