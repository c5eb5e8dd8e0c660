"""The compiled kernels of `kernels/*.c`: products that read weights as stored, and small ops.

The machine's C compiler makes them once, for this very processor; the result is kept in the cache
folder. Where there is no compiler everything still runs, through torch and more slowly, and
`status()` says so. They use as many threads as torch.

Taught in the chapter "Inside an ML Program"; measured in research/executor-speed.md.
"""

from collections.abc import Callable
import ctypes
from functools import cache
import hashlib
from math import prod
import os
from pathlib import Path
import subprocess
import tempfile
import threading

from ane_book.device import c_compiler, cache_folder
import torch
from torch import Tensor

__all__ = [
    "Weight",
    "attention",
    "available",
    "batch_matmul",
    "fixed",
    "gated",
    "layer_norm",
    "lent",
    "rms_norm",
    "softmax",
    "status",
]

SOURCES = sorted(Path(__file__).with_name("kernels").glob("*.[ch]"))
FLAGS = ("-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")

#: How compilers call "for this very processor", tried in order; the last one is for any.
TARGETS = (("-march=native",), ("-mcpu=native",), ())

KINDS = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.uint8: 3}


_P, _N, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
SIGNATURES = {
    "matvec": (_P, _P, _P, _FLAG),
    "matmat": (_P, _P, _P, _N, _FLAG),
    "batch_matmul": (_P, _P, _P, _N, _N, _N, _N, _FLAG, _FLAG),
    "softmax": (_P, _P, _N, _N, _FLAG),
    "layer_norm": (_P, _P, _P, _P, _N, _N, _N, ctypes.c_float, _FLAG),
    "rms_norm": (_P, _P, _P, _N, _N, _N, ctypes.c_float, _FLAG, _FLAG),
    "gated": (_P, _P, _P, _N, _FLAG, _FLAG),
    "attention": (_P, _P, _P, _P, _P, _P, _FLAG),
}


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
    )


def available() -> bool:
    """Whether the compiled products can be used here."""
    return _library()[0] is not None


def status() -> tuple[bool, str]:
    """Whether there are compiled products, and how they were made or why they were not."""
    library, reason = _library()
    return library is not None, reason


@cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    compiler = c_compiler()
    if compiler is None:
        return None, "no C compiler: matrix products go through torch, more slowly"
    errors = ""
    for target in TARGETS:
        try:
            library = ctypes.CDLL(str(_compile(compiler, target)))
        except (OSError, subprocess.SubprocessError) as error:
            errors = str(getattr(error, "stderr", "") or error)
            continue
        for name, argtypes in SIGNATURES.items():
            getattr(library, name).argtypes = argtypes
        return library, " ".join([compiler, *FLAGS, *target])
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return None, f"{compiler} cannot compile the kernels ({last}): products go through torch"


def _compile(compiler: str, target: tuple[str, ...]) -> Path:
    """The shared library for this compiler and processor, made unless it is in the cache."""
    source = b"".join(file.read_bytes() for file in SOURCES)
    # The macros say which instructions the compiler may use: another processor, another library.
    macros = [compiler, *target[:1], "-dM", "-E", "-x", "c", os.devnull]
    known = subprocess.run(macros, check=True, capture_output=True, timeout=60).stdout
    key = hashlib.sha256(b"\0".join([source, known, repr((FLAGS, target)).encode()]))
    folder = cache_folder() / "native"
    library = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / library.name
        files = [str(file) for file in SOURCES if file.suffix == ".c"]
        build = [compiler, *FLAGS, *target, "-o", str(made), *files]
        subprocess.run(build, check=True, capture_output=True, text=True, timeout=120)
        made.replace(library)  # another process may have made it meanwhile: the same bytes
    return library


class _Lent:
    """Torch's threads while a function runs whose heavy work is compiled: torch keeps one.

    What is left to torch is then small, and waking a thread takes longer than doing it alone.
    """

    def __init__(self):
        self._lock, self._borrowers, self._threads = threading.Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if not self._borrowers:
                self._threads = torch.get_num_threads()
            self._borrowers += 1
        torch.set_num_threads(1)

    def __exit__(self, *_) -> None:
        with self._lock:
            self._borrowers -= 1
        torch.set_num_threads(self._threads)

    def threads(self) -> int:
        """How many threads a compiled product may use: torch's, or those that torch lent."""
        return self._threads if self._borrowers else torch.get_num_threads()


lent = _Lent()


class Weight:
    """A constant matrix (R, C) in the form that the package stores, ready for products.

    data: float32, float16 or int8 (R, C), or packed nibbles, uint8 (R, C/2), with C a multiple of
    32. table: float32, a scale for each row of int8 (R,), or the palettes of nibbles (G, 16), each
    for R/G rows. bias: (R,) or None. dtype: of activations, float16 or float32.
    """

    def __init__(
        self,
        data: Tensor,
        dtype: torch.dtype,
        table: Tensor | None = None,
        bias: Tensor | None = None,
    ):
        self.rows, columns = data.shape
        self.columns = columns * 2 if data.dtype == torch.uint8 else columns
        self.dtype = dtype
        bias = None if bias is None else bias.float().contiguous()
        self._keep = (data.contiguous(), table, bias)  # the struct has only their addresses
        pointers = [None if t is None else t.data_ptr() for t in self._keep]
        group = self.rows // len(table) if data.dtype == torch.uint8 else 1
        half = dtype == torch.float16
        self._matrix = _Matrix(*pointers, self.rows, self.columns, group, KINDS[data.dtype], half)
        self._address = ctypes.addressof(self._matrix)
        library, _ = _library()
        self._matvec, self._matmat = library.matvec, library.matmat

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
        """x as the compiled code may read it."""
        if channels != self.columns or x.dtype != self.dtype:
            raise ValueError(f"a weight of {self.columns} columns times {x.dtype} {[*x.shape]}")
        return x.contiguous()

    def _multiply(self, x: Tensor, y: Tensor) -> None:
        tokens, threads = x.numel() // self.columns, lent.threads()
        if tokens == 1:
            failed = self._matvec(self._address, x.data_ptr(), y.data_ptr(), threads)
        else:
            pointers = (self._address, x.data_ptr(), y.data_ptr())
            failed = tokens and self._matmat(*pointers, tokens, threads)
        _check(failed)


class _Attention(ctypes.Structure):
    """`Attention` of attention.c."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("slots", ctypes.c_int64 * 2),
        ("mask_rows", ctypes.c_int64),
        ("is_half", ctypes.c_int32),
    )


def fixed(plain: Callable | None, run: Callable, dtype: torch.dtype, *shapes: tuple) -> Callable:
    """`run` for contiguous operands of these shapes and this dtype, `plain` for any others.

    Without a plain form others raise ValueError: compiled code reads as far as the shapes say.
    """

    def call(*operands: Tensor) -> Tensor:
        for x, shape in zip(operands, shapes, strict=True):
            if x.shape != shape or x.dtype != dtype:
                if plain is None:
                    raise ValueError(f"{x.dtype} {[*x.shape]} where the program says {[*shape]}")
                return plain(*operands)
        return run(*[x.contiguous() for x in operands])

    return call


def softmax(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """softmax over the last axis."""
    function, half = _library()[0].softmax, dtype == torch.float16
    rows, size = prod(shape[:-1]), shape[-1]

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        _check(function(x.data_ptr(), y.data_ptr(), rows, size, half))
        return y

    return run


def layer_norm(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axes: range,
    gamma: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
) -> Callable[[Tensor], Tensor]:
    """Layer norm over neighbouring axes; gamma and beta have their sizes."""
    function, half = _library()[0].layer_norm, dtype == torch.float16
    factors = [None if t is None else t.float().contiguous() for t in (gamma, beta)]
    outer, inner = prod(shape[: axes.start]), prod(shape[axes.stop :])
    size = prod(shape[axes.start : axes.stop])

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        pointers = [None if t is None else t.data_ptr() for t in factors]
        _check(function(x.data_ptr(), y.data_ptr(), *pointers, outer, size, inner, epsilon, half))
        return y

    return run


def rms_norm(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axis: int,
    weight: Tensor | None,
    epsilon: float,
) -> Callable[[Tensor], Tensor]:
    """x / sqrt(mean of x^2 along `axis` + epsilon), times a weight of that axis' size."""
    function, half = _library()[0].rms_norm, dtype == torch.float16
    factors = None if weight is None else weight.float().contiguous()
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), epsilon, half)

    def run(x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        pointer = None if factors is None else factors.data_ptr()
        _check(function(x.data_ptr(), y.data_ptr(), pointer, *sizes, lent.threads()))
        return y

    return run


def gated(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """silu(gate) * x, of gate and x of one shape."""
    function, half, size = _library()[0].gated, dtype == torch.float16, prod(shape)

    def run(gate: Tensor, x: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=dtype)
        _check(function(gate.data_ptr(), x.data_ptr(), y.data_ptr(), size, half, lent.threads()))
        return y

    return run


def attention(
    q_shape: tuple[int, ...], slots: tuple[int, ...], mask_rows: int, dtype: torch.dtype
) -> Callable[..., Tensor]:
    """softmax(q K^T + mask) V of q (*B, M, D), the keys of each part, mask, the values of each.

    slots: of the one or two parts, whose keys and values are (*B, N, D). mask_rows: M, or 1.
    """
    function, half = _library()[0].attention, dtype == torch.float16
    *batch, rows, depth = q_shape
    counts = (ctypes.c_int64 * 2)(*slots)
    record = _Attention(prod(batch), rows, depth, counts, mask_rows, half)
    address, parts = ctypes.addressof(record), len(slots)
    Pointers = ctypes.c_void_p * 2

    def run(q: Tensor, mask: Tensor, *cache: Tensor, record: _Attention = record) -> Tensor:
        out = torch.empty(q_shape, dtype=dtype)
        keys = Pointers(*[x.data_ptr() for x in cache[:parts]])
        values = Pointers(*[x.data_ptr() for x in cache[parts:]])
        pointers = (q.data_ptr(), keys, values, mask.data_ptr(), out.data_ptr())
        _check(function(address, *pointers, lent.threads()))
        return out

    return run


def batch_matmul(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], transpose_y: bool, dtype: torch.dtype
) -> Callable[[Tensor, Tensor], Tensor]:
    """x (*B, M, K) times y, (*B, N, K) if transpose_y, else (*B, K, N), for few rows M."""
    function, half = _library()[0].batch_matmul, dtype == torch.float16
    *batch, rows, depth = x_shape
    columns = y_shape[-2] if transpose_y else y_shape[-1]
    sizes = (prod(batch), rows, columns, depth, transpose_y, half)

    def run(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty((*batch, rows, columns), dtype=dtype)
        _check(function(x.data_ptr(), y.data_ptr(), out.data_ptr(), *sizes))
        return out

    return run


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for a compiled op's sums")
