"""An answer in progress, its text while it arrives, its result, and the clock that times it.

A session works on one at a time, because there is one cache.
"""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
import time
from typing import TYPE_CHECKING

from ane_book.errors import InvalidInput, SessionBusy
from ane_book.runtime.sampling import TokenLogprobs
import numpy as np

if TYPE_CHECKING:
    from ane_book.text.process import TextProcess
    from tokenizers import Tokenizer


INCOMPLETE = "\ufffd"  # what a decoder puts for bytes that are not (yet) a character


@dataclass(frozen=True)
class Result:
    """The answer to one prompt, and its figures.

    token_ids: the generated tokens; the token that ended the answer is the last of them.
    prompt_tokens: length of the prompt, chat markers included.
    prefill_tps, decode_tps: tokens per second, sampling included; None where nothing was measured.
    finish_reason: "stop" (end token, stop string, repetition) or "length" (max_tokens or the
    context). stop: the stop string that came, if one did.
    calls: passes through all programs, to decode. drafted, accepted: tokens guessed, and how many
    of them are in the answer.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    prefill_tps: float | None
    decode_tps: float | None
    finish_reason: str
    calls: int = 0
    drafted: int = 0
    accepted: int = 0
    stop: str | None = None

    @property
    def tokens_per_call(self) -> float | None:
        """Tokens per call to decode, or None where there was none."""
        return (len(self.token_ids) - 1) / self.calls if self.calls else None


class TextStream:
    """Feed token ids, get text that will not change any more. Special tokens give no text, but for
    those in `shown`, by id.

    A token of a byte-level vocabulary may end in the middle of a character, so text is held back
    until the bytes are whole; with stop strings, also while it could still turn into one. What
    comes out, joined, is what decoding all tokens at once gives, cut at the first stop string.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer | TextProcess",
        stops: tuple[str, ...] = (),
        shown: Mapping[int, str] | None = None,
    ):
        self._tokenizer, self._stops, self._shown = tokenizer, stops, shown or {}
        # Text of `_window` up to `_known` is out; earlier ids stay in it only because some decoders
        # treat the first token of a text differently.
        self._window: list[int] = []
        self._known = 0
        self._held = ""
        self.stopped = False  # a stop string came; nothing follows
        self.stop: str | None = None  # it

    def add(self, token_id: int) -> str:
        """The text that this token makes final, often one word, sometimes nothing."""
        if token_id in self._shown:
            before = self._decode(final=True)
            self._window, self._known = [], 0
            return self._release(before + self._shown[token_id], final=False)
        self._window.append(token_id)
        return self._release(self._decode(final=False), final=False)

    def finish(self) -> str:
        """The text that was still held back."""
        return self._release(self._decode(final=True), final=True)

    def _decode(self, final: bool) -> str:
        shown, text = self._tokenizer.decode_batch([self._window[: self._known], self._window])
        if len(text) == len(shown) or (text.endswith(INCOMPLETE) and not final):
            return ""
        self._window, self._known = self._window[self._known :], len(self._window) - self._known
        return text[len(shown) :]

    def _release(self, text: str, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        ends = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if ends:
            self.stopped, self._held = True, ""
            at, self.stop = min(ends)
            return text[:at]
        keep = 0 if final else max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Answer:
    """Collects the tokens of an answer and their text; `reason` is set once it has ended.

    most: tokens at most. ends: tokens that end it. repeat: it also ends when its last so many
    tokens occurred in it before.
    """

    def __init__(self, text: TextStream, most: int, ends: Collection[int], repeat: int | None):
        self.tokens: list[int] = []
        self.reason: str | None = None
        self._text, self._most, self._ends, self._repeat = text, most, ends, repeat
        self._pieces: list[str] = []

    def add(self, token: int) -> str:
        """Take the next token; returns the text that becomes final."""
        self.tokens.append(token)
        ended = token in self._ends
        piece = self._text.finish() if ended else self._text.add(token)
        n, tokens = self._repeat or 0, self.tokens
        repeats = 0 < 2 * n <= len(tokens) and any(
            tokens[i : i + n] == tokens[-n:] for i in range(len(tokens) - n)
        )
        if ended or self._text.stopped or repeats:
            self.reason = "stop"
        elif len(self.tokens) == self._most:
            self.reason = "length"
        self._pieces.append(piece)
        return piece

    def finish(self) -> str:
        """The text that was still held back."""
        self._pieces.append(self._text.finish())
        return self._pieces[-1]

    @property
    def left(self) -> int:
        """How many more tokens it may have."""
        return self._most - len(self.tokens)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def stop(self) -> str | None:
        """The stop string that came."""
        return self._text.stop


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
    """Yields pieces of text as they become final; `result` is set after the last one.

    The session is busy from the first piece to the last. If a stream is left before its end, the
    session is free again once the stream is closed or no longer referred to.

    pieces: the generator of the answer, with an empty piece after each call of the programs.
    drawn: log probabilities of the tokens so far, where asked for (`Sampling.logprobs`).
    """

    def __init__(self, pieces: Generator[str, None, Result], drawn: Sequence[TokenLogprobs] = ()):
        self._pieces, self._turn = pieces, Lock()
        self.drawn = drawn
        self.result: Result | None = None

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        return next(filter(None, self.steps()))

    def steps(self) -> Iterator[str]:
        """Yield the rest, with "" after each call, so that a server can stop there."""
        while True:
            with alone(self._turn):
                try:
                    piece = next(self._pieces)
                except StopIteration as end:
                    self.result = end.value or self.result
                    return
            yield piece

    def finish(self) -> Result:
        """Run to the end; returns the result. Raises InvalidInput where it was closed before."""
        for _ in self.steps():
            pass
        if self.result is None:
            raise InvalidInput("this stream was closed before its end: it has no result")
        return self.result

    def close(self) -> None:
        """Give up the rest of the answer."""
        with alone(self._turn):
            self._pieces.close()


class Clock:
    """Counts seconds from when it is made: on the device, in guessing and in sampling."""

    def __init__(self):
        self._start = time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the seconds of this block: those of text, and of the stream's reader."""
        since = time.perf_counter()
        yield
        self._start += time.perf_counter() - since

    def rate(self, tokens: int) -> float | None:
        """Tokens per second so far, or None for none."""
        return tokens / (time.perf_counter() - self._start) if tokens else None


def common_prefix(a: Sequence[int], b: Sequence[int] | np.ndarray) -> int:
    """How many first tokens two lists share."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
