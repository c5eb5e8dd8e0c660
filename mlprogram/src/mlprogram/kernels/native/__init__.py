"""The compiled kernels of `c/*.c`: products that read weights as stored, and small ops.

The machine's C compiler compiles them once, for this processor, into the cache folder. Without a
compiler everything still runs with torch, more slowly, and `status()` says so. They use as many
threads as torch.

Measured in research/executor-speed.md.
"""

from collections.abc import Callable
import ctypes
from functools import cache
import sys
import threading

from mlprogram.kernels.compiled import library
from mlprogram.kernels.threads import threads
import torch
from torch import Tensor

EXPANDED = 1 << 18  # weights in float32 at a time, for torch to multiply with

KINDS = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.uint8: 3}


#: The dtypes of `walk.h`, and what it calls them.
TYPES = {
    dtype: number
    for number, dtype in enumerate(
        (
            torch.float32, torch.float16, torch.bool, torch.int8, torch.uint8, torch.int16,
            torch.uint16, torch.int32, torch.int64,
        )
    )
}  # fmt: skip


class _Matrix(ctypes.Structure):
    """`Matrix` of products.c."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("half_activations", ctypes.c_int32),
        ("half_weights", ctypes.c_int32),
        ("block", ctypes.c_int32),
    )


def available() -> bool:
    """Whether the compiled products can be used here."""
    return library()[0] is not None


def status() -> tuple[bool, str]:
    """Whether there are compiled kernels, and a text: for which instructions, how they were
    compiled, and what torch still does; or why there are none.
    """
    found, reason = library()
    if found is None:
        return False, reason
    rest = "; torch multiplies several tokens, faster" if several_by_torch() else ""
    return True, f"{instruction_set()}, {reason}{rest}"


def instruction_set() -> str | None:
    """The instructions that the kernels use, "AVX-512", "AVX2", "NEON" or "plain"; or None."""
    found = library()[0]
    return None if found is None else found.instruction_set().decode()


@cache
def torch_is_wider() -> bool:
    """Whether the kernels were compiled as "plain", and torch has vectors of AVX."""
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return vectors and instruction_set() == "plain"


@cache
def several_by_torch() -> bool:
    """Whether torch multiplies several tokens faster than the kernels (executor-speed.md).

    Whether it does on a Mac, where it uses Apple's matrix unit, is not measured.
    """
    return torch_is_wider() or (instruction_set() == "NEON" and sys.platform == "darwin")


def pays(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether the kernels are faster than torch for weights and activations of these dtypes.

    They are not for half precision that is widened without an instruction for it, in kernels that
    were compiled as "plain": torch then reads weights that were widened at load in less time.
    """
    return not (torch_is_wider() and (stored, dtype) == (torch.float16, torch.float32))


class Numbers:
    """A struct of eight bytes a field or pair of fields, of which a kernel is given the address."""

    def __init__(self, struct: ctypes.Structure):
        self._as_parameter_ = ctypes.byref(struct)
        self.words = (*memoryview(bytes(struct)).cast("q"),)


class _Recording(threading.local):
    """to: what takes the calls of kernels in this thread, instead of the kernels; see
    `run/record.py`."""

    to: Callable[[str, tuple], int] | None = None


recording = _Recording()


def kernel(name: str) -> Callable:
    """A compiled function by its name in C, which raises MemoryError if it runs out of memory, and
    returns 0, or 1 for what it leaves to torch."""
    function = getattr(library()[0], name)

    def call(*arguments) -> int:
        record = recording.to
        return function(*arguments) if record is None else record(name, arguments)

    return call


class Weight:
    """A constant matrix (R, C) in the form that the package stores, ready for products.

    data: float32, float16 or int8 (R, C), or packed nibbles, uint8 (R, C/2), with C a multiple of
    32. table: a scale for each row of int8 (R,), or the palettes of nibbles (G, 16), each for R/G
    rows; what a float16 scale makes is rounded to float16. bias: (R,) or None. dtype: of
    activations, float16 or float32. block: a multiple of 32 where nibbles are int4 and the table is
    a scale for each so many columns of a row, (R, C/block), which is read as it is stored.
    """

    def __init__(
        self,
        data: Tensor,
        dtype: torch.dtype,
        table: Tensor | None = None,
        bias: Tensor | None = None,
        block: int = 0,
    ):
        self.rows, columns = data.shape
        packed = data.dtype == torch.uint8
        self.columns = columns * 2 if packed else columns
        self.dtype = dtype
        bias = None if bias is None else bias.float().contiguous()
        half_weights = table is not None and table.dtype == torch.float16
        if table is not None:  # scales of blocks are read as stored
            table = (table if block and half_weights else table.float()).contiguous()
        self._keep = (data.contiguous(), table, bias)  # the struct has only their addresses
        stored, of_table, of_bias = (None if t is None else t.data_ptr() for t in self._keep)
        self.matrix = _Matrix(
            weight=stored,
            table=of_table,
            bias=of_bias,
            rows=self.rows,
            columns=self.columns,
            group=self.rows // len(table) if packed and table is not None else 1,
            kind=KINDS[data.dtype],
            half_activations=dtype == torch.float16,
            half_weights=half_weights,
            block=block,
        )
        self.address = ctypes.addressof(self.matrix)
        self._as_parameter_ = ctypes.c_void_p(self.address)
        self._matvec, self._matmat = kernel("matvec"), kernel("matmat")
        self._expand = kernel("expand")
        self._expand_activations = kernel("expand_activations")

    def channels_first(self, x: Tensor) -> Tensor:
        """A 1x1 convolution: x (N, C, *D) -> (N, R, *D)."""
        n, channels, *spatial = x.shape
        y = torch.empty((n, self.rows, *spatial), dtype=self.dtype)
        x = self._checked(x, channels)
        for source, target in zip(x, y, strict=True) if n > 1 else ((x, y),):
            self._multiply(source, target)
        return y

    def channels_last(self, x: Tensor) -> Tensor:
        """A linear layer: x (*B, C) -> (*B, R)."""
        x = self._checked(x, x.shape[-1])
        if x.numel() == self.columns:
            y = torch.empty((*x.shape[:-1], self.rows), dtype=self.dtype)
            self._multiply(x, y)
            return y
        columns = x.reshape(-1, self.columns).t().contiguous()  # (C, T)
        y = torch.empty((self.rows, columns.shape[1]), dtype=self.dtype)
        self._multiply(columns, y)
        return y.t().reshape(*x.shape[:-1], self.rows)

    def _checked(self, x: Tensor, channels: int) -> Tensor:
        """Check x, and make it contiguous for the compiled code."""
        if channels != self.columns or x.dtype != self.dtype:
            raise ValueError(f"a weight of {self.columns} columns times {x.dtype} {[*x.shape]}")
        return x.contiguous()

    def _multiply(self, x: Tensor, y: Tensor) -> None:
        tokens = x.numel() // self.columns
        if tokens > 1 and several_by_torch():
            self._multiply_by_torch(x, y)
        elif tokens == 1:
            self._matvec(self, x, y, threads())
        elif tokens:
            self._matmat(self, x, y, tokens, 0, threads())

    def _multiply_by_torch(self, x: Tensor, y: Tensor) -> None:
        """Multiply several tokens with torch, expanding some rows of the weight to float32 at a
        time."""
        tokens, (data, _, bias) = x.numel() // self.columns, self._keep
        x, y = self._wide(x, tokens), y.view(self.rows, tokens)
        step = min(self.rows, max(1, EXPANDED // self.columns))
        scratch, sums = torch.empty(step, self.columns), torch.empty(step, tokens)
        for first in range(0, self.rows, step):
            end = min(first + step, self.rows)
            rows, out = scratch[: end - first], sums[: end - first]
            if data.dtype == torch.float32:
                rows = data[first:end]
            else:
                self._expand(self, rows, first, end)
            torch.mm(rows, x, out=out)
            if bias is not None:
                out += bias[first:end, None]
            y[first:end] = out

    def _wide(self, x: Tensor, tokens: int) -> Tensor:
        """Activations in float32 (C, tokens), in the column order of the C function `expand`."""
        if x.dtype == torch.float32 and self._keep[0].dtype != torch.uint8:
            return x.reshape(self.columns, tokens)
        wide = torch.empty(self.columns, tokens)
        self._expand_activations(self, x, wide, tokens)
        return wide
