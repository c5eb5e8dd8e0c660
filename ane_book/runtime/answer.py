"""An answer: the pieces of a stream while they arrive, and the result when it is whole.

A session works on one at a time, because there is one cache.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
import time

from ane_book.errors import SessionBusy

__all__ = ["Clock", "Result", "Stream", "alone"]


@dataclass(frozen=True)
class Result:
    """What came of one prompt.

    token_ids: the generated tokens; the token that ended the answer is the last of them.
    prompt_tokens: length of the prompt, chat markers included.
    prefill_tps, decode_tps: tokens per second, sampling included; None where nothing was measured.
    finish_reason: "stop" (end token or stop string) or "length" (max_tokens or the context).
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    prefill_tps: float | None
    decode_tps: float | None
    finish_reason: str


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Hold a session's lock; raises SessionBusy where another call or stream has it."""
    if not lock.acquire(blocking=False):
        raise SessionBusy(
            "this session is in the middle of another call or stream: let that end, close() or "
            "drop the stream, or open a second session"
        )
    try:
        yield
    finally:
        lock.release()


class Stream:
    """Pieces of text as they become final; `result` is there once they are used up.

    From its first piece to its last it has the session to itself. One that is left before its end
    gives the session back when it is closed or no longer referred to.

    pieces: what is run, with an empty piece after each call of the programs: `steps` gives those,
    too, so that whoever serves many can leave an answer within one call.
    """

    def __init__(self, pieces: Generator[str, None, Result]):
        self._pieces, self._turn = pieces, Lock()
        self.result: Result | None = None

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        return next(filter(None, self.steps()))

    def steps(self) -> Iterator[str]:
        """The rest, with an empty piece for each step that gives no text."""
        with suppress(StopIteration):
            while True:
                yield self._step()

    def _step(self) -> str:
        with alone(self._turn):
            try:
                return next(self._pieces)
            except StopIteration as end:
                self.result = end.value or self.result
                raise StopIteration from None

    def close(self) -> None:
        """Give up the rest of the answer."""
        with alone(self._turn):
            self._pieces.close()


class Clock:
    """Seconds spent on the device and in sampling, not in whoever reads the stream."""

    def __init__(self):
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self.tokens = {"prefill": 0, "decode": 0}

    def run(self, phase: str, work: Callable, tokens: int = 0):
        start = time.perf_counter()
        value = work()
        self.seconds[phase] += time.perf_counter() - start
        self.tokens[phase] += tokens
        return value

    def rate(self, phase: str) -> float | None:
        """Tokens per second, or None when the phase did not happen."""
        return self.tokens[phase] / self.seconds[phase] if self.tokens[phase] else None
