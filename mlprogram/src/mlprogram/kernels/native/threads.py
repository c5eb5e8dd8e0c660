"""How many threads the executor uses: as many as torch has in the thread that calls.

Where a function's heavy work is compiled, the ops that are left to torch are small, and waking a
thread takes longer than doing them alone: some 15 ms of a chunk of 64 tokens
(research/executor-speed.md). Torch then keeps to one thread, by the limits of OpenMP and of MKL
that hold for the thread that sets them and for no other. `torch.set_num_threads` would not do: it
also sets what every thread begins with that uses torch for the first time meanwhile.

After a fork the child has one thread, but GNU's OpenMP waits in it for the helpers that the parent
had, for ever. There torch keeps to one thread in all that the executor does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import os
import threading

import torch

__all__ = ["threads", "torch_threads"]


class _Own(threading.local):
    """What is so in this very thread alone."""

    lent: int | None = None  # threads that torch does without at the moment
    forked = False  # whether a child process began with this thread


_own = _Own()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_own, "forked", True))


def _function(name: str):
    """A function of a library that torch is linked with; None where it is not (Windows, a Mac)."""
    try:  # a symbol is looked for in a library's dependencies too
        return getattr(ctypes.CDLL(torch._C.__file__), name, None)
    except OSError:
        return None


_limit, _set_limit = _function("omp_get_max_threads"), _function("omp_set_num_threads")
_swap_mkl = _function("MKL_Set_Num_Threads_Local")  # returns what was set before


def threads() -> int:
    """How many threads a compiled kernel may use: torch's own number, lent out or not."""
    return _own.lent or torch.get_num_threads()


@contextmanager
def torch_threads(light: bool) -> Iterator[None]:
    """Work of torch: with one thread where it is light, or where its others are gone."""
    if _set_limit is None or _own.lent or not (light or _own.forked):
        yield
        return
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
