"""The terminal: how far a long task is, on stderr, and what is typed.

Progress is a bar on a terminal, else a line now and then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import sys
import time

__all__ = ["progress_bar", "typed_lines"]


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A callback (description, done, total): a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("loading", total=None)  # a pulse until there are steps to count

        def draw(description: str, done: int, total: int) -> None:
            bar.update(task, description=description, completed=done, total=total)

        yield draw


class _Lines:
    """Progress for a log: the last step, and one line at most every few seconds before it."""

    PAUSE = 5.0  # seconds

    def __init__(self):
        self._next = time.monotonic() + self.PAUSE

    def __call__(self, description: str, done: int, total: int) -> None:
        if done >= total or time.monotonic() >= self._next:
            self._next = time.monotonic() + self.PAUSE
            print(f"{description} ({done:,} of {total:,})", file=sys.stderr, flush=True)


def typed_lines() -> Iterator[str]:
    """Lines that are not blank from stdin, with a prompt on a terminal."""
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
