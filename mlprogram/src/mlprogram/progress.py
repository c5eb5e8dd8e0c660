"""How far a long task is, on stderr, and what others print there.

Progress is a bar on a terminal, else a line now and then.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
import logging
import signal
import sys
import threading
import time


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A callback (description, done, total): a bar on a terminal, else a line now and then.

    total: None where nobody knows.
    """
    if not sys.stderr.isatty():
        yield _LogLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("loading", total=None)  # a pulse until there are steps to count

        def draw(description: str, done: int, total: int | None) -> None:
            bar.update(task, description=description, completed=done, total=total)

        yield draw


class _LogLines:
    """Progress for a log: the last step, and one line at most every few seconds before it."""

    PAUSE = 5.0  # seconds

    def __init__(self):
        self._next = time.monotonic() + self.PAUSE

    def __call__(self, description: str, done: int, total: int | None) -> None:
        if (total is not None and done >= total) or time.monotonic() >= self._next:
            self._next = time.monotonic() + self.PAUSE
            of = "" if total is None else f" of {total:,}"
            print(f"{description} ({done:,}{of})", file=sys.stderr, flush=True)


class _Silence:
    """Coremltools without its bars, and its logger with errors alone, while anyone needs that."""

    def __init__(self):
        self._lock, self._users, self._before = threading.RLock(), 0, ExitStack()

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            logger = logging.getLogger("coremltools")
            if logger.level == logging.NOTSET:  # else somebody wants to see more, or less
                self._before.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.ERROR)
            with _held_signals():
                from coremltools.converters.mil.frontend.torch import ops
                from coremltools.converters.mil.mil.passes import pass_pipeline

            for module, name in ((ops, "_tqdm"), (pass_pipeline, "tqdm")):
                bar = getattr(module, name)
                self._before.callback(setattr, module, name, bar)
                setattr(module, name, partial(bar, disable=True))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._before.close()


@contextmanager
def _held_signals() -> Iterator[None]:
    """Ctrl-C and termination wait: coremltools, while it is imported, takes whatever is raised for
    a library that is missing."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets them
        yield
        return
    came: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


_silence = _Silence()


@contextmanager
def silent_coremltools() -> Iterator[None]:
    """No lines from coremltools' import, of which there are nine off a Mac, and no bars from it.

    Afterwards all is as it was: what a program sees of its own use of coremltools is its affair.
    """
    try:
        _silence.begin()
        yield
    finally:
        _silence.end()
