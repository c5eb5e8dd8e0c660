"""`ahead`: make the next of some items while the one before is used."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch

__all__ = ["ahead"]

Item = TypeVar("Item")

_lock, _before = Lock(), list[int]()  # torch's threads, for each of those that have half of them


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield `items`, of which a thread makes the next while the caller is busy with one.

    So a layer, or a part of the head, is read, and runs for the golden numbers, while the one
    before is encoded and written; there are two of them in memory, as there are without. What an
    item raises is raised in its turn. Who may stop early closes the generator, which ends the
    thread. Meanwhile torch has half of its threads, in the whole process: there are two at work,
    and with all of them each would wait for the other's.
    """
    end = object()
    with _half_of_torch(), ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]


@contextmanager
def _half_of_torch() -> Iterator[None]:
    """Half of torch's threads, until the last of several conversions at once is done with them."""
    with _lock:
        _before.append(_before[0] if _before else torch.get_num_threads())
        torch.set_num_threads(max(1, _before[0] // 2))
    try:
        yield
    finally:
        with _lock:
            threads = _before.pop()
            if not _before:
                torch.set_num_threads(threads)
