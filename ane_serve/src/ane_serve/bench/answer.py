"""One answer, timed where its text arrives."""

from collections.abc import Iterable
from dataclasses import dataclass, field
import time


@dataclass(frozen=True)
class TimedAnswer:
    """The answer to one prompt, and its times.

    prompt_tokens, tokens: None where nobody counted them. cached: tokens of the prompt that the
    server says it took from a cache. first_s, total_s: seconds from asking to the first and to the
    last text. pieces: how many the text came in. own: tokens a second that the engine or the server
    reports itself, as `prefill` and `decode`.
    """

    text: str
    prompt_tokens: int | None
    tokens: int | None
    first_s: float
    total_s: float
    pieces: int
    cached: int = 0
    own: dict[str, float] = field(default_factory=dict)

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens a second until the first text, which includes decoding one token."""
        if self.prompt_tokens is None or self.first_s <= 0:
            return None
        return (self.prompt_tokens - self.cached) / self.first_s

    @property
    def decode_tps(self) -> float | None:
        """Tokens after the first one for each second after the first text.

        None where the text came in far fewer pieces than tokens, all at once at the worst: it was
        held back, and when it came says nothing of when it was made.
        """
        if self.tokens is None or self.tokens < 2 or 2 * self.pieces < self.tokens:
            return None
        if self.total_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.total_s - self.first_s)


def timed(pieces: Iterable[str]) -> tuple[str, float, float, int]:
    """Read all pieces; returns the text, seconds to the first and to the end, their number."""
    started, first, texts = time.perf_counter(), None, []
    for piece in filter(None, pieces):
        if first is None:
            first = time.perf_counter() - started
        texts.append(piece)
    total = time.perf_counter() - started
    return "".join(texts), total if first is None else first, total, len(texts)
