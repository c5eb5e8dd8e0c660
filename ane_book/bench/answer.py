"""One answer, timed where its text arrives."""

from collections.abc import Iterable
from dataclasses import dataclass, field
import time

__all__ = ["TimedAnswer", "timed"]


@dataclass(frozen=True)
class TimedAnswer:
    """What came of one prompt, and when.

    prompt_tokens, tokens: None where nobody counted them. cached: tokens of the prompt that were
    not computed, as far as the server says so. first_s, total_s: seconds from asking to the first
    and to the last text. pieces: in how many the text came. own: tokens a second that an engine or
    a server gives for itself, `prefill` and `decode`, as far as it does.
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
        """Tokens of the prompt for each second up to the first text, which is one token's too."""
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
    """Use pieces of text up: all of it, seconds to the first and to the end, how many they were."""
    started, first, said = time.perf_counter(), None, []
    for piece in filter(None, pieces):
        if first is None:
            first = time.perf_counter() - started
        said.append(piece)
    total = time.perf_counter() - started
    return "".join(said), total if first is None else first, total, len(said)
