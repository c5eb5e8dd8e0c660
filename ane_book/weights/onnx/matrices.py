"""Decode matrices as ONNX stores them: plain, transposed, or as block-quantised integers.

`MatMulNBits` and `GatherBlockQuantized`, operators of ONNX Runtime, have matrices (N, K) whose
rows are cut into blocks; each block has integers of 2, 4 or 8 bits, packed with the low bits
first, a scale, and a zero point z:

    w = (q - z) * scale

Zero points are packed like the integers, or stored in the scale's type. If there are none, z is
2^(bits - 1) for integers packed in bytes, and 0 for a tensor of type UINT4 or INT4.

References: onnxruntime, docs/ContribOperators.md. Letters: N rows (out), K columns (in), B blocks
in a row.
"""

from dataclasses import dataclass
from typing import ClassVar

from ane_book.errors import InvalidWeights
from ane_book.weights.source import Integers, Shape
from mlprogram.onnx.file import StoredTensor
from mlprogram.package.weight_file import unpack_bits
import numpy as np

FLOATS, NIBBLES = ("FLOAT", "FLOAT16", "BFLOAT16"), ("UINT4", "INT4")  # ONNX's types
WEIGHTS_AT_ONCE = 1 << 21  # weights decoded at a time, so that temporaries stay near 20 MB


@dataclass(frozen=True)
class Plain:
    """A floating-point matrix or vector; `turned`: stored as (K, N), as MatMul's second operand."""

    tensor: StoredTensor
    turned: bool = False
    is_integers: ClassVar[bool] = False

    @property
    def shape(self) -> Shape:
        return self.tensor.shape[::-1] if self.turned else self.tensor.shape

    @property
    def key(self) -> tuple:
        """A key that is equal for two matrices that share their storage."""
        return (self.tensor.name,)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, K) float32, the caller's own."""
        array = self.tensor.numbers()
        part = array[:, start:stop].T if self.turned else array[start:stop]
        return np.array(part, np.float32, order="C")

    def stored(self, start: int, stop: int) -> None:
        """None: there are no integers."""


@dataclass(frozen=True)
class Blocks:
    """A block-quantised matrix (N, K)."""

    data: StoredTensor  # the packed bytes of N rows of B blocks each
    scales: StoredTensor  # N * B
    zeros: StoredTensor | None
    shape: Shape  # (N, K)
    bits: int
    block: int
    middle: int  # the zero point if none is stored
    signed: bool = False  # the integers are in two's complement

    @property
    def key(self) -> tuple:
        return self.data.name, self.scales.name

    @property
    def count(self) -> int:
        """B: blocks in a row."""
        return -(-self.shape[1] // self.block)

    def __post_init__(self):
        """Raises InvalidWeights unless the sizes of the parts fit together."""
        if self.block < 16 or self.block & (self.block - 1):
            raise InvalidWeights(
                f"{self.data.where}: a block size of {self.block}; a power of two from 16 on is"
            )
        N, B = self.shape[0], self.count
        whole = N * B * self.block * self.bits // 8
        exact = N * self.shape[1] * self.bits // 8
        if len(self.data.bytes()) not in (whole, exact) or self.scales.bytes().size == 0:
            raise InvalidWeights(
                f"{self.data.where} has {len(self.data.bytes()):,} bytes; {N} rows of {B} blocks "
                f"of {self.block} weights of {self.bits} bits take {whole:,}"
            )
        if self.scales.numbers().size != N * B:
            raise InvalidWeights(
                f"{self.scales.where} has shape {list(self.scales.shape)}; {N} rows of {B} blocks "
                "have a scale each"
            )
        if self.zeros is None:
            return
        packed = -(-B * self.bits // 8)  # bytes of a row
        size = N * B if self.zeros.kind in FLOATS else N * packed
        size = -(-N * B // 2) if self.zeros.kind in NIBBLES else size
        if self.zeros.array().size != size:
            raise InvalidWeights(
                f"{self.zeros.where} has shape {list(self.zeros.shape)}; zero points of {N} rows "
                f"of {B} blocks take {N} x {packed} bytes"
            )

    def integers(self, start: int, stop: int) -> np.ndarray:
        """The integers of some rows, unpacked: (stop - start, K) uint8, or int8 if signed."""
        rows = self.data.bytes().reshape(self.shape[0], -1)[start:stop]
        return self._unpacked(rows, self.bits)[:, : self.shape[1]]

    def _unpacked(self, rows: np.ndarray, bits: int) -> np.ndarray:
        """Rows of packed bytes (n, m) -> the numbers in them, (n, m * 8 / bits)."""
        numbers = unpack_bits(rows.reshape(-1), bits, rows.size * 8 // bits, self.signed)
        return numbers.reshape(len(rows), -1)

    def scale(self, start: int, stop: int) -> np.ndarray:
        """The scales of some rows: (stop - start, B) float32."""
        scales = self.scales.numbers().reshape(self.shape[0], -1)
        return scales[start:stop].astype(np.float32)

    def zero(self, start: int, stop: int) -> np.ndarray:
        """The zero points of some rows: (stop - start, B) float32."""
        N, B = stop - start, self.count
        if self.zeros is None:
            return np.full((N, B), self.middle, np.float32)
        if self.zeros.kind in FLOATS:
            return self.zeros.array().reshape(-1, B)[start:stop].astype(np.float32)
        if self.zeros.kind in NIBBLES:  # rows are not padded, and may begin inside of a byte
            first = start * B // 2
            row = self._unpacked(self.zeros.bytes()[None, first : -(-stop * B // 2)], 4)[0]
            numbers = row[start * B - 2 * first :][: N * B].reshape(N, B)
        else:
            packed = self.zeros.bytes().reshape(self.shape[0], -1)[start:stop]
            numbers = self._unpacked(packed, self.bits)[:, :B]
        return numbers.astype(np.float32)

    @property
    def is_integers(self) -> bool:
        """Whether `stored` returns integers."""
        whole = not self.shape[1] % self.block
        return whole and (self.zeros is None or self.zeros.kind not in FLOATS)

    def stored(self, start: int, stop: int) -> Integers | None:
        """Some rows as integers; None if blocks do not divide a row, or zeros are not integers.

        Without stored zero points, unsigned integers are shifted to int8 so that their zero point
        is 0. Integers of two bits are returned as integers of four.
        """
        if not self.is_integers:
            return None
        data, scale, bits = self.integers(start, stop), self.scale(start, stop), max(self.bits, 4)
        if self.zeros is not None:
            return Integers(data, scale, self.zero(start, stop).astype(data.dtype), bits)
        if self.signed or not self.middle:
            return Integers(data, scale, None, bits)
        return Integers((data.astype(np.int16) - self.middle).astype(np.int8), scale, None, bits)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Dequantise some rows, a chunk at a time: a new array (stop - start, K) float32."""
        K = self.shape[1]
        out, block = np.empty((stop - start, K), np.float32), np.arange(K) // self.block
        step = max(1, WEIGHTS_AT_ONCE // max(K, 1))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            part = out[first - start : last - start]
            np.subtract(self.integers(first, last), self.zero(first, last)[:, block], out=part)
            part *= self.scale(first, last)[:, block]
        return out


Matrix = Plain | Blocks


@dataclass(frozen=True)
class MatrixPart:
    """Some rows of a matrix, or some elements of a vector."""

    source: Matrix
    start: int
    stop: int

    @property
    def shape(self) -> Shape:
        return self.stop - self.start, *self.source.shape[1:]

    def rows(self, start: int, stop: int) -> "MatrixPart":
        return MatrixPart(self.source, self.start + start, self.start + stop)

    def integers(self) -> Integers | None:
        """The rows as stored integers, or None: see `stored`."""
        return self.source.stored(self.start, self.stop)

    def read(self) -> np.ndarray:
        """The rows as a new float32 array."""
        return self.source.rows(self.start, self.stop)


def whole(source: Matrix) -> MatrixPart:
    """All rows of a matrix."""
    return MatrixPart(source, 0, source.shape[0])
