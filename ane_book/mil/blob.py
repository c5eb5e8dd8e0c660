"""The weight file of a package: `weights/weight.bin`.

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

from ane_book.errors import InvalidPackage
import numpy as np

__all__ = ["BlobFile"]

SENTINEL = 0xDEADBEEF
HEADER = struct.Struct("<II56x")  # count, version
RECORD = struct.Struct("<IIQQQ32x")  # sentinel, dtype, bytes, data offset, padding in bits

#: dtype code of a record -> MIL dtype
BLOB_DTYPES = {
    1: "fp16", 2: "fp32", 3: "uint8", 4: "int8", 5: "bf16", 6: "int16", 7: "uint16", 8: "int4",
    9: "uint1", 10: "uint2", 11: "uint4", 12: "uint3", 13: "uint6", 14: "int32", 15: "uint32",
}  # fmt: skip

#: bits of the dtypes that are packed several to a byte
SUB_BYTE = {"int4": 4, "uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}

NUMPY = {
    "fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bool": np.bool_,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "bf16": np.uint16, "string": np.str_,
}  # fmt: skip


def unpack_bits(packed: np.ndarray, bits: int, count: int, signed: bool) -> np.ndarray:
    """`count` values of `bits` bits each, least significant bit first, as uint8 or int8."""
    planes = np.unpackbits(packed, bitorder="little")[: count * bits].reshape(count, bits)
    values = (planes << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    if signed:
        values = values.astype(np.int8)
        values[values >= 1 << (bits - 1)] -= 1 << bits
    return values


class BlobFile:
    """Reads blobs from a memory-mapped weight file; nothing is copied but sub-byte values.

    The mapping is private (copy on write), so that torch may own a view of it: the file never
    changes.
    """

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except ValueError:  # an empty file cannot be mapped
                raise InvalidPackage(f"{path}: the weight file is empty") from None
        if len(self._map) < HEADER.size:
            raise InvalidPackage(f"{path}: {len(self._map)} bytes is too short for a weight file")
        version = HEADER.unpack_from(self._map)[1]
        if version != 2:
            raise InvalidPackage(f"{path}: weight file version {version} is not 2")

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """The blob whose record is at `offset`, as an array of `shape`, mapped.

        Raises InvalidPackage when record, dtype or size disagree with what the program declares.
        """
        where = f"{self.path}: blob at byte {offset}"
        if offset % 64 or offset < HEADER.size or offset + RECORD.size > len(self._map):
            raise InvalidPackage(f"{where} lies outside the file of {len(self._map)} bytes")
        sentinel, code, size, start, _ = RECORD.unpack_from(self._map, offset)
        if sentinel != SENTINEL:
            raise InvalidPackage(f"{where} has no record (sentinel {sentinel:#x})")
        if BLOB_DTYPES.get(code) != dtype:
            found = BLOB_DTYPES.get(code, f"code {code}")
            raise InvalidPackage(f"{where} holds {found}, the program declares {dtype}")
        count = prod(shape)
        bits = SUB_BYTE.get(dtype) or 8 * np.dtype(NUMPY[dtype]).itemsize
        expected = (count * bits + 7) // 8
        if size != expected or start + size > len(self._map):
            raise InvalidPackage(
                f"{where} has {size} bytes at {start} of a file of {len(self._map)}; "
                f"{dtype}{list(shape)} needs {expected}"
            )
        if dtype in SUB_BYTE:
            packed = np.frombuffer(self._map, np.uint8, size, start)
            return unpack_bits(packed, bits, count, dtype.startswith("int")).reshape(shape)
        return np.frombuffer(self._map, NUMPY[dtype], count, start).reshape(shape)
