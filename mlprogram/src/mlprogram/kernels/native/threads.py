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
import os
import threading

import torch


class _Own(threading.local):
    """State of the current thread."""

    lent: int | None = None  # torch's number of threads while it is limited to one
    forked = False  # whether this thread is the first one of a forked process


_own = _Own()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_own, "forked", True))


def _function(name: str):
    """A function of a library that torch is linked with, or None (on Windows and macOS)."""
    try:  # a symbol is looked for in a library's dependencies too
        return getattr(ctypes.CDLL(torch._C.__file__), name, None)
    except OSError:
        return None


_limit, _set_limit = _function("omp_get_max_threads"), _function("omp_set_num_threads")
_swap_mkl = _function("MKL_Set_Num_Threads_Local")  # returns what was set before


def threads() -> int:
    """The number of threads that a compiled kernel may use: torch's, even while it is limited."""
    return _own.lent or torch.get_num_threads()


def torch_threads(light: bool) -> AbstractContextManager[None]:
    """Limit torch to one thread in this context if its work is light, or after a fork."""
    needed = _set_limit is not None and not _own.lent and (light or _own.forked)
    return _one_thread() if needed else _AS_IT_IS


_AS_IT_IS = nullcontext()


@contextmanager
def _one_thread() -> Iterator[None]:
    _own.lent = torch.get_num_threads()  # first: in a new thread this sets OpenMP's limit
    openmp, mkl = _limit(), _swap_mkl and _swap_mkl(1)
    try:
        _set_limit(1)
        yield
    finally:
        _set_limit(openmp)
        if _swap_mkl:
            _swap_mkl(mkl)
        _own.lent = None
