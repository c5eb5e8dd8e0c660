"""`ahead`: make the next of some items while the one before is used."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")

_whole = list[int]()  # torch's threads, for each conversion that has half of them


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield `items`, of which a thread makes the next while the caller is busy with one.

    So a layer, or a part of the head, is read, and runs for the golden numbers, while the one
    before is encoded and written; there are two of them in memory, as there are without. What an
    item raises is raised in its turn. Who may stop early closes the generator, which ends the
    thread. Meanwhile torch has half of its threads, here and in new threads: there are two at work,
    and with all of them each would wait for the other's.
    """
    end, threads = object(), max(torch.get_num_threads(), *_whole, 1)
    _whole.append(threads)
    torch.set_num_threads(max(1, threads // 2))
    try:
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(next, items, end)
            while (item := coming.result()) is not end:
                coming = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
    finally:
        torch.set_num_threads(threads)
        _whole.remove(threads)
