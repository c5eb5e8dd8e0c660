"""The number of threads that the executor uses: as many as torch has in the calling thread.

If a function's heavy work is done by compiled kernels, the ops that are left to torch are small,
and waking threads takes longer than computing in one: some 15 ms in a chunk of 64 tokens
(research/executor-speed.md). Torch is then limited to one thread by the limits of OpenMP and MKL,
which hold only for the thread that sets them. `torch.set_num_threads` would also change the limit
of every other thread that uses torch for the first time meanwhile.

After a fork GNU's OpenMP waits in the child, for ever, for the parent's threads. There the executor
limits torch to one thread throughout.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
import ctypes
from functools import cache
import os
import sys
import threading

from mlprogram.machine import physical_cores


class _Own(threading.local):
    """State of the current thread."""

    lent: int | None = None  # torch's number of threads while it is limited to one
    forked = False  # whether this thread is the first one of a process forked from torch's


_own = _Own()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_own, "forked", "torch" in sys.modules))


@cache
def _function(name: str):
    """A function of a library that torch is linked with, or None (on Windows and macOS)."""
    import torch

    try:  # a symbol is looked for in a library's dependencies too
        return getattr(ctypes.CDLL(torch._C.__file__), name, None)
    except OSError:
        return None


def threads() -> int:
    """The number of threads that a compiled kernel may use: torch's, even while it is limited, or
    those that torch would have, if it is not imported."""
    if _own.lent:
        return _own.lent
    count = getattr(sys.modules.get("torch"), "get_num_threads", _torchs_default)
    return count()


@cache
def _torchs_default() -> int:
    """As MKL counts them: the processor's cores, or as many of them as are asked for."""
    asked = [os.environ.get(name, "") for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS")]
    counts = [int(text) for text in asked if text.isdecimal() and int(text)]
    return min([*counts[:1], physical_cores()])


def torch_threads(light: bool) -> AbstractContextManager[None]:
    """Limit torch to one thread in this context if its work is light, or after a fork."""
    if _own.lent or not (light or _own.forked) or _function("omp_set_num_threads") is None:
        return _AS_IT_IS
    return _one_thread()


_AS_IT_IS = nullcontext()


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    limit, swap_mkl = _function("omp_set_num_threads"), _function("MKL_Set_Num_Threads_Local")
    _own.lent = torch.get_num_threads()  # first: in a new thread this sets OpenMP's limit
    openmp, mkl = _function("omp_get_max_threads")(), swap_mkl and swap_mkl(1)  # what was set
    try:
        limit(1)
        yield
    finally:
        limit(openmp)
        if swap_mkl:
            swap_mkl(mkl)
        _own.lent = None
