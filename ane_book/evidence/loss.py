"""What a conversion costs in quality, on a text: perplexity, agreement, divergence.

`prose` is the text: paragraphs of this book's chapters 00, 02 and 05 as they stood on 2026-11-21,
some 2,700 tokens of plain English. It stays as it is, so that figures of different days compare.

Letters: n tokens of a window, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ane_book.errors import InvalidInput
import numpy as np

__all__ = ["Loss", "fresh", "measure", "prose"]

Logits = Callable[[list[int]], np.ndarray]  # token ids of a window -> (n, V) after each of them


@dataclass(frozen=True)
class Loss:
    """Sums over the predicted tokens of a text.

    perplexity: e to the mean of -log p(next token), of the found logits. agreement: how often found
    and reference put the same token first. divergence: mean Kullback-Leibler divergence of the
    found distribution from the reference's, in nats.
    """

    tokens: int
    perplexity: float
    agreement: float
    divergence: float


def fresh(session) -> Logits:
    """A session's logits of a window, with nothing before it."""

    def logits(token_ids: list[int]) -> np.ndarray:
        session.reset()
        return session.logits(token_ids)

    return logits


def prose() -> str:
    """The text that ships with the library."""
    return Path(__file__).with_name("prose.txt").read_text(encoding="utf-8")


def measure(found: Logits, reference: Logits, token_ids: Sequence[int], window: int = 256) -> Loss:
    """Compare two models on a text, cut into windows that each start afresh.

    found, reference: give the logits (n, V) after each token of a window; for a session, `fresh`.
    Raises InvalidInput for fewer than two tokens.
    """
    sums, tokens = np.zeros(3), 0
    for ids in _windows(token_ids, window):
        a, b = (_log_softmax(model(ids)[:-1]) for model in (found, reference))
        rows = np.arange(len(a))
        sums -= a[rows, ids[1:]].sum(), -(a.argmax(1) == b.argmax(1)).sum(), _divergence(a, b)
        tokens += len(a)
    if not tokens:
        raise InvalidInput("a text of at least two tokens is needed to predict one")
    return Loss(tokens, float(np.exp(sums[0] / tokens)), *(sums[1:] / tokens).tolist())


def _windows(token_ids: Sequence[int], size: int) -> Iterable[list[int]]:
    """Stretches of `size` tokens; the last may be shorter, but predicts at least one."""
    for start in range(0, len(token_ids) - 1, size):
        yield list(token_ids[start : start + size])


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """(n, V) float32, in place where that is what they are."""
    logits = np.asarray(logits, np.float32)
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True, dtype=np.float64)).astype(
        np.float32
    )


def _divergence(found: np.ndarray, reference: np.ndarray) -> float:
    """Minus the sum over rows of KL(reference || found)."""
    return float((np.exp(reference) * (found - reference)).sum(dtype=np.float64))
