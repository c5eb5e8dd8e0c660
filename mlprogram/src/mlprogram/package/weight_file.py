"""The weight file of a package, `weights/weight.bin`: read it, and what a writer has to know.

Layout (apple/coremltools, `mlmodel/src/MILBlob/Blob/StorageFormat.hpp`), little-endian: a header of
64 bytes (u32 count, u32 version = 2), then for every blob a record of 64 bytes, aligned to 64 (u32
sentinel 0xDEADBEEF, u32 dtype, u64 size in bytes, u64 offset of the data, u64 padding in bits), and
its data, aligned to 64 as well. A program refers to a blob by the offset of its record, not of its
data.
"""

from math import prod
import mmap
from pathlib import Path
import struct

from mlprogram.errors import AbsentFile, InvalidPackage, refuse_pointer
import numpy as np

VERSION = 2
SENTINEL = 0xDEADBEEF
HEADER = struct.Struct("<II56x")  # count, version
RECORD = struct.Struct("<IIQQQ32x")  # sentinel, dtype, bytes, data offset, padding in bits

#: dtype code of a record -> MIL dtype
BLOB_DTYPES = {
    1: "fp16", 2: "fp32", 3: "uint8", 4: "int8", 5: "bf16", 6: "int16", 7: "uint16", 8: "int4",
    9: "uint1", 10: "uint2", 11: "uint4", 12: "uint3", 13: "uint6", 14: "int32", 15: "uint32",
}  # fmt: skip

#: and the other way
CODES = {dtype: code for code, dtype in BLOB_DTYPES.items()}

#: bits of the dtypes that are packed several to a byte
SUB_BYTE = {"int4": 4, "uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}

#: how numpy holds a dtype once read: bf16 as its bits, sub-byte values one to a byte
NUMPY = {
    "fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bool": np.bool_,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "bf16": np.uint16, "string": np.str_, "int4": np.int8, "uint1": np.uint8,
    "uint2": np.uint8, "uint3": np.uint8, "uint4": np.uint8, "uint6": np.uint8,
}  # fmt: skip


def stored_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor in a weight file."""
    bits = SUB_BYTE.get(dtype) or 8 * np.dtype(NUMPY[dtype]).itemsize
    return (prod(shape) * bits + 7) // 8


def blob_record(dtype: str, shape: tuple[int, ...], offset: int) -> bytes:
    """The record at `offset` of a tensor whose data follows it."""
    size = stored_bytes(dtype, shape)
    padding = 8 * size - prod(shape) * SUB_BYTE[dtype] if dtype in SUB_BYTE else 0
    return RECORD.pack(SENTINEL, CODES[dtype], size, offset + RECORD.size, padding)


def pack_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack integers of `bits` bits, one to a byte, least significant bit first; the reverse of
    `unpack_bits`. Raises ValueError for a value that needs more bits."""
    flat = values.reshape(-1)
    least = -(1 << (bits - 1)) if flat.dtype.kind == "i" else 0
    if flat.size and (flat.min() < least or flat.max() >= least + (1 << bits)):
        raise ValueError(f"values from {flat.min()} to {flat.max()} do not fit in {bits} bits")
    span = 1 if 8 % bits == 0 else 3  # bytes after which the pattern repeats: 1, or 3 for 3, 6 bits
    each = 8 * span // bits
    rows = np.zeros((-(-flat.size // each), each), np.uint8)
    rows.reshape(-1)[: flat.size] = flat.view(np.uint8)
    rows &= (1 << bits) - 1
    word = np.zeros(len(rows), np.uint8 if span == 1 else "<u4")
    for place in range(each):
        word |= rows[:, place].astype(word.dtype) << (place * bits)
    packed = word.view(np.uint8).reshape(len(word), -1)[:, :span].reshape(-1)
    return packed[: (flat.size * bits + 7) // 8]


def unpack_bits(packed: np.ndarray, bits: int, count: int, signed: bool) -> np.ndarray:
    """Unpack `count` values of `bits` bits each, least significant bit first, to uint8 or int8.

    packed: uint8, of which the first bytes are read. Raises ValueError if it has too few.
    """
    needed = (count * bits + 7) // 8
    if len(packed) < needed:
        raise ValueError(f"{len(packed)} bytes hold no {count} values of {bits} bits")
    span = 1 if 8 % bits == 0 else 3  # bytes after which the pattern repeats: 1, or 3 for 3, 6 bits
    word = packed[:needed]
    if span == 3:
        padded = np.zeros((-(-needed // 3), 4), np.uint8)
        padded[:, :3].flat[:needed] = word
        word = padded.view("<u4")[:, 0]
    values: np.ndarray = np.empty((len(word), 8 * span // bits), np.uint8)
    for place in range(values.shape[1]):
        values[:, place] = (word >> (place * bits)) & ((1 << bits) - 1)
    values = values.reshape(-1)[:count]
    if not signed:
        return values
    sign = np.uint8(1 << (bits - 1))  # two's complement: flip the sign bit, then take it away
    return ((values ^ sign) - sign).view(np.int8)


class BlobFile:
    """Reads blobs from a memory-mapped weight file; only sub-byte values are copied.

    The mapping is private (copy on write), so that torch may hold a writable view of it without
    changing the file.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            refuse_pointer(path, AbsentFile)
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:  # an empty file cannot be mapped
            raise InvalidPackage(f"{path}: the weight file is empty") from None
        except OSError as error:
            raise InvalidPackage(f"{path}: cannot be mapped ({error.strerror})") from None
        if len(self._map) < HEADER.size:
            raise InvalidPackage(f"{path}: {len(self._map)} bytes is too short for a weight file")
        version = HEADER.unpack_from(self._map)[1]
        if version != VERSION:
            raise InvalidPackage(f"{path}: weight file version {version} is not {VERSION}")

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read the blob whose record is at `offset`, as an array of `shape`; mapped if possible.

        Raises InvalidPackage if record, dtype or size disagree with what the program declares.
        """
        stored = self.packed(offset, dtype, shape)
        if dtype in SUB_BYTE:
            values = unpack_bits(stored, SUB_BYTE[dtype], prod(shape), dtype.startswith("int"))
            return values.reshape(shape)
        return stored.view(NUMPY[dtype]).reshape(shape)

    def packed(self, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """The bytes of that blob as they are stored, uint8, mapped; raises like `read`."""
        where = f"{self.path}: blob at byte {offset}"
        if offset % 64 or offset < HEADER.size or offset + RECORD.size > len(self._map):
            raise InvalidPackage(f"{where} lies outside the file of {len(self._map)} bytes")
        sentinel, code, size, start, _ = RECORD.unpack_from(self._map, offset)
        if sentinel != SENTINEL:
            raise InvalidPackage(f"{where} has no record (sentinel {sentinel:#x})")
        if BLOB_DTYPES.get(code) != dtype:
            found = BLOB_DTYPES.get(code, f"code {code}")
            raise InvalidPackage(f"{where} holds {found}, the program declares {dtype}")
        expected, itemsize = stored_bytes(dtype, shape), np.dtype(NUMPY[dtype]).itemsize
        if size != expected or start + size > len(self._map) or start % itemsize:
            raise InvalidPackage(
                f"{where} has {size} bytes at {start} of a file of {len(self._map)}; "
                f"{dtype}{list(shape)} needs {expected}, aligned to {itemsize}"
            )
        return np.frombuffer(self._map, np.uint8, size, start)
