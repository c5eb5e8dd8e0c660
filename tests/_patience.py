"""Limits of time in tests. They guard against hanging, and say nothing of speed.

What they guard takes a second or a few. A busy machine may take ten times that, and more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import signal
import time

HANGING = 600.0  # seconds; whatever is not done by then hangs


class Guard:
    """Against a loop that waits for ever."""

    def __init__(self, seconds: float = HANGING):
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that may still be waited. Raises TimeoutError where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it hangs: what is waited for has not come to be")
        return left


def until(condition: Callable[[], bool], seconds: float = HANGING) -> None:
    """Return once the condition holds. Raises TimeoutError where it does not come to be."""
    guard = Guard(seconds)
    while not condition():
        guard.left()
        time.sleep(0.005)


@contextmanager
def guarded(seconds: float = HANGING) -> Iterator[None]:
    """Raises TimeoutError in work of the main thread that hangs; has no effect on Windows."""

    def stop(*_) -> None:
        raise TimeoutError(f"it hangs: not done after {seconds:g} s")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
