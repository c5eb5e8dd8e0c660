"""The functions of the compiled library: how each is called, and the tables of calls that it runs.

Torch is not imported: a kept plan (`run/kept.py`) runs without it.
"""

import ctypes
from functools import cache
from typing import Any

from mlprogram.kernels.library import load


class Pointer:
    """An argument that is a pointer. Kernels are called with what owns the memory and never with an
    address alone, so that whoever records a call knows what has to live as long as the record.

    An owner is a tensor, a tuple of tensors or None, `native.Numbers`, `native.Weight` or None.
    """

    @staticmethod
    def from_param(owner: Any):
        if isinstance(owner, tuple):
            pointers = [None if x is None else x.data_ptr() for x in owner]
            return (ctypes.c_void_p * len(pointers))(*pointers)
        if hasattr(owner, "data_ptr"):
            return ctypes.c_void_p(owner.data_ptr())
        return None if owner is None else owner._as_parameter_


_P, _N, _FLAG, _REAL = Pointer, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
SIGNATURES = {
    "matvec": (_P, _P, _P, _FLAG),
    "matmat": (_P, _P, _P, _N, _N, _FLAG),
    "expand": (_P, _P, _N, _N),
    "expand_activations": (_P, _P, _P, _N),
    "batch_matmul": (_P, _P, _P, _N, _N, _N, _N, _FLAG, _FLAG),
    "einsum": (_P, _P, _P, *[_N] * 9, _FLAG, _FLAG),
    "softmax": (_P, _P, _N, _N, _N, _FLAG),
    "layer_norm": (_P, _P, _P, _P, _N, _N, _N, _REAL, _FLAG),
    "rms_norm": (_P, _P, _P, _N, _N, _N, _REAL, _REAL, _FLAG, _FLAG, _FLAG),
    "rotary": (_P, _P, _P, _P, _N, _N, _N, _FLAG, _FLAG, _FLAG),
    "activation": (_P, _P, _N, _FLAG, _FLAG, _FLAG),
    "gather": (_P, _P, _P, _N, _N, _N, _N, _FLAG, _FLAG),
    "gated": (_P, _P, _P, _N, _FLAG, _FLAG),
    "attention": (_P, _P, _P, _P, _P, _P, _FLAG),
}


def _check(failed: int, *_) -> int:
    if failed < 0:
        raise MemoryError("no memory for what a compiled op sums up")
    return failed


@cache
def library() -> tuple[ctypes.CDLL | None, str]:
    """The library and how it was compiled; or None and the reason."""
    found, reason = load([*SIGNATURES, "instruction_set", "run_steps"])
    if found:
        found.instruction_set.restype = ctypes.c_char_p
        found.run_steps.argtypes = (ctypes.c_void_p, _N, ctypes.c_void_p, _FLAG)
        found.run_steps.restype = _N
    for name, argtypes in SIGNATURES.items() if found else ():
        function = getattr(found, name)
        function.argtypes, function.errcheck = argtypes, _check
    return found, reason


def entry(name: str) -> int:
    """The address of a kernel's entry in run.c, for tables of steps."""
    address = ctypes.cast(getattr(library()[0], f"run_{name}"), ctypes.c_void_p).value
    return address or 0


def run_steps(*arguments) -> int:
    """`run_steps` of run.c: table, its words, bases, threads -> the place of a failure, or -1."""
    return library()[0].run_steps(*arguments)  # type: ignore[union-attr]
