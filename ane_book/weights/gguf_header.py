"""Parse the header of a GGUF file, checking every length in it against the file.

    magic "GGUF", version, number of tensors, number of metadata entries      (little endian)
    metadata    key, type, value; strings are a length and UTF-8, arrays a type, a length and items
    tensors     name, dimensions (fastest first), type, offset from the start of the data
    data        aligned blocks, e.g. Q8_0: 32 weights as one fp16 scale and 32 int8

The package `gguf` dequantises the blocks, but its reader of headers is not used: it makes four
numpy views per token and per merge of the tokenizer (200,000 objects, two seconds), and it trusts
the lengths in the file.

Reference: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path
import struct

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.source import PICKLED, Shape
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from mlprogram.files import check_file
import numpy as np

# Limits on a header, three times the largest one known. Without them most damaged lengths would
# pass, because a file has gigabytes after its header.
HEADER_BYTES, HEADER_VALUES = 1 << 28, 1 << 22
LENGTH = struct.Struct("<Q")  # of a text
ENTRY, ROW = 8 + 4 + 1, 8 + 4 + 4 + 8  # the least bytes of a metadata entry, of a tensor's row

#: Metadata types that are one number -> their numpy dtype.
SCALARS: dict[int, np.dtype] = {
    kind: np.dtype(kind.name.lower()).newbyteorder("<")
    for kind in GGUFValueType
    if kind not in (GGUFValueType.STRING, GGUFValueType.ARRAY)
}

#: What is said of a file that is none, by its suffix where that says what it is.
NO_GGUF = (
    "not a GGUF file (it does not start with GGUF); weights are read from .gguf files and from "
    "folders with config.json and *.safetensors"
)
OTHERS = {
    ".json": "names no weights; give its folder, which holds them as well",
    ".pt2": "a program of torch.export; `coremltools.convert` makes a package of it, and "
    "`ane-book diff PACKAGE --source FILE.pt2` compares the two",
    **dict.fromkeys((".bin", ".pt", ".pth", ".ckpt"), PICKLED),
}


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor's place in the file, and how it is stored."""

    shape: Shape
    type: GGMLQuantizationType
    start: int  # bytes from the beginning of the file
    size: int  # bytes


def map_file(path: Path) -> np.ndarray:
    """Map a file into memory: uint8 (n,), whose pages are read on first access."""
    check_file(path)
    try:
        if not path.stat().st_size:
            raise InvalidWeights(f"{path}: the file is empty; get it again")
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise InvalidWeights(f"{path}: cannot be mapped into memory: {error}") from None


class _Cursor:
    """Reads the header's values one after another, and never past the end of the file."""

    def __init__(self, data: np.ndarray, path: Path):
        self.data, self.path, self.at, self.values = data.data, path, 0, 0
        self.end = min(len(data), HEADER_BYTES)

    def reserve(self, count: int, size: int) -> None:
        """Raise InvalidWeights unless `count` values of at least `size` bytes each can follow."""
        self.values += count
        self._check(self.at + count * size)
        if self.values > HEADER_VALUES:
            raise InvalidWeights(f"{self.path}: damaged: a header of {self.values:,} values")

    def take(self, count: int) -> memoryview:
        start, self.at = self.at, self.at + count
        self._check(self.at)
        return self.data[start : self.at]

    def _check(self, end: int) -> None:
        if end > self.end:
            raise InvalidWeights(
                f"{self.path}: the header wants byte {end} of a file of {len(self.data)}; the file "
                "is cut short or damaged: get it again"
            )

    def integer(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        """A text after its length; a vocabulary has some hundred thousand of them."""
        start = self.at + LENGTH.size
        self._check(start)
        self.at = start + LENGTH.unpack_from(self.data, self.at)[0]
        self._check(self.at)
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError:
            raise InvalidWeights(f"{self.path}: damaged: text at {self.at} is not UTF-8") from None

    def value(self, key: str):
        """Read a metadata value and its type: str, int, float, bool or a list of these."""
        kind = self.integer("I")
        if kind != GGUFValueType.ARRAY:
            return self._items(key, kind, 1)[0]
        return self._items(key, self.integer("I"), self.integer("Q"))

    def row(self, name: str) -> tuple[Shape, int, int]:
        """Read a row of the table of tensors: shape (reversed to (out, in)), type, offset."""
        rank = self.integer("I")
        if rank > 4:
            raise InvalidWeights(f"{self.path}: damaged: tensor {name} has {rank} dimensions")
        dimensions = [self.integer("Q") for _ in range(rank)]
        return tuple(reversed(dimensions)), self.integer("I"), self.integer("Q")

    def named(self, count: int, read: Callable) -> dict:
        """Read `count` pairs of a name and what `read(name)` returns."""
        found = {}
        for _ in range(count):
            name = self.string()
            if name in found:
                raise InvalidWeights(f"{self.path}: damaged: {name!r} is there twice")
            found[name] = read(name)
        return found

    def _items(self, key: str, kind: int, count: int) -> list:
        if kind == GGUFValueType.STRING:
            self.reserve(count, 8)
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise InvalidWeights(f"{self.path}: damaged: {key} is of unknown type {kind}")
        dtype = SCALARS[kind]
        self.reserve(count, dtype.itemsize)
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()


def read_header(data: np.ndarray, path: Path) -> tuple[dict, dict[str, GGUFTensor]]:
    """Read the metadata by key, and the tensors by GGUF name; all lie inside the file."""
    cursor = _Cursor(data, path)
    if bytes(cursor.take(4)) != b"GGUF":
        raise InvalidWeights(f"{path}: {OTHERS.get(path.suffix, NO_GGUF)}")
    version = cursor.integer("I")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version}; supported: 2 and 3, little endian")
    tensor_count, entry_count = cursor.integer("Q"), cursor.integer("Q")
    cursor.reserve(entry_count, ENTRY)
    metadata = cursor.named(entry_count, cursor.value)
    cursor.reserve(tensor_count, ROW)
    rows = cursor.named(tensor_count, cursor.row)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise InvalidWeights(f"{path}: damaged: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: _locate(name, row, start, len(data), path) for name, row in rows.items()}
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end:  # one of the offsets is damaged
            raise InvalidWeights(
                f"{path}: damaged: tensor {name} begins inside of tensor {before}; get it again"
            )
        end, before = tensor.start + tensor.size, name
    return metadata, tensors


def _locate(name: str, row: tuple[Shape, int, int], start: int, end: int, path: Path) -> GGUFTensor:
    """A tensor's type and place in the file, whose data are the bytes from `start` to `end`.

    Raises InvalidWeights for a tensor that does not lie there, UnsupportedModel for its type.
    """
    shape, kind, offset = row
    try:
        tensor_type = GGMLQuantizationType(kind)
        weights, size = GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError):
        raise UnsupportedModel(f"{path}: tensor {name} is of unknown type {kind}") from None
    if not shape or shape[-1] % weights:
        raise InvalidWeights(f"{path}: tensor {name}: {shape} is no whole number of blocks")
    tensor = GGUFTensor(shape, tensor_type, start + offset, math.prod(shape) // weights * size)
    if tensor.start + tensor.size > end:
        raise InvalidWeights(
            f"{path}: tensor {name} ends at byte {tensor.start + tensor.size} of a file of {end}; "
            "the file is cut short: get it again"
        )
    return tensor
