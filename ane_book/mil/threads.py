"""How many threads the executor uses: as many as torch has in the thread that calls.

Where a function's heavy work is compiled, the ops that are left to torch are small, and waking a
thread takes longer than doing them alone: some 15 ms of a chunk of 64 tokens
(research/executor-speed.md). Torch then keeps to one thread, by OpenMP's own limit, which holds for
the thread that sets it and for no other. `torch.set_num_threads` would not do: it also sets what
every thread begins with that uses torch for the first time meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import threading

import torch

__all__ = ["threads", "torch_alone"]


class _Lent(threading.local):
    """Threads that torch has lent in this very thread, or None."""

    threads: int | None = None


_lent = _Lent()

try:  # the OpenMP that torch is linked with: a symbol is looked for in a library's dependencies too
    _openmp = ctypes.CDLL(torch._C.__file__)
    _set_limit, _limit = _openmp.omp_set_num_threads, _openmp.omp_get_max_threads
except (OSError, AttributeError):  # Windows, or a torch without OpenMP: it keeps its threads
    _set_limit, _limit = None, None


def threads() -> int:
    """How many threads a compiled kernel may use: torch's own number, lent out or not."""
    return _lent.threads or torch.get_num_threads()


@contextmanager
def torch_alone() -> Iterator[None]:
    """Torch does without helpers in this thread, and the compiled kernels have them instead."""
    if _set_limit is None or _lent.threads:
        yield
        return
    given = torch.get_num_threads()  # in a new thread this sets OpenMP's limit, so it comes first
    before = _limit()
    try:
        _lent.threads = given
        _set_limit(1)
        yield
    finally:
        _set_limit(before)
        _lent.threads = None
