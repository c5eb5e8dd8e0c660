"""Measure what a conversion loses on a text: perplexity, agreement, divergence, standard errors.

Two texts ship with the library, and stay as they are, so that figures of different days compare:

    prose    plain English: paragraphs of this book's chapters 00, 02 and 05 of 2026-11-21
    code     Python: three modules of this library as they stood on 2026-11-22

of some 2,800 and 3,000 tokens. Both are younger than SmolLM2, whose figures are recorded.

Errors are standard errors of the mean over blocks of 32 tokens. Neighbouring tokens are correlated,
but blocks are nearly independent, so the error says what another text of the same kind would have
changed. That of `change` is far smaller than those of the two perplexities, since a token that is
hard for one model is hard for the other.

Letters: n tokens of a window, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ane_book.errors import InvalidInput
from ane_book.runtime.sampling import log_softmax
import numpy as np

Logits = Callable[[list[int]], np.ndarray]  # n token ids of a window -> logits (n, V)


BLOCK = 32  # tokens

#: The names of the texts in reports.
TEXTS = {"prose": "English, of chapters of the ANE Book", "code": "Python, of this library"}


@dataclass(frozen=True)
class Loss:
    """Means over the predicted tokens of a text; x_error is the standard error of figure x.

    perplexity: exp of the mean of -log p(next token), from the found logits. change: its relative
    difference from the reference's perplexity. agreement: how often found and reference have the
    same top token. divergence: mean Kullback-Leibler divergence of the found distribution from the
    reference's, in nats. With a single block of text the errors are infinite.
    """

    tokens: int
    perplexity: float
    perplexity_error: float
    change: float
    change_error: float
    agreement: float
    agreement_error: float
    divergence: float
    divergence_error: float


def fresh(session) -> Logits:
    """The logits of a session for a window with nothing before it."""

    def logits(token_ids: list[int]) -> np.ndarray:
        session.reset()
        return session.logits(token_ids)

    return logits


def text(name: str) -> str:
    """One of `TEXTS`, which ship with the library."""
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")


def measure(found: Logits, reference: Logits, token_ids: Sequence[int], window: int = 256) -> Loss:
    """Compare two models on a text, cut into windows that each start with an empty cache.

    found, reference: return the logits (n, V) after each token of a window; see `fresh`. Raises
    InvalidInput for fewer than two tokens.
    """
    starts = range(0, len(token_ids) - 1, window)  # the last window predicts at least one token
    windows = (list(token_ids[start : start + window]) for start in starts)
    rows = [_compare(found, reference, ids) for ids in windows]
    if not rows:
        raise InvalidInput("a text of at least two tokens is needed to predict one")
    columns = np.concatenate(rows, axis=1)  # (4, tokens)
    (surprise, more, agreement, divergence), errors = columns.mean(axis=1), _errors(columns)
    perplexity, ratio = np.exp(surprise), np.exp(more)
    figures = (
        (perplexity, perplexity * errors[0]),
        (ratio - 1, ratio * errors[1]),
        (agreement, errors[2]),
        (divergence, errors[3]),
    )
    return Loss(columns.shape[1], *(float(x) for pair in figures for x in pair))


def _compare(found: Logits, reference: Logits, token_ids: list[int]) -> np.ndarray:
    """Four figures for each predicted token (4, n - 1): -log p, its difference from the
    reference's, whether both have the same top token, divergence."""
    given = (np.asarray(model(token_ids)[:-1], np.float32) for model in (found, reference))
    a, b = map(log_softmax, given)
    rows, following = np.arange(len(a)), token_ids[1:]
    surprise = -a[rows, following].astype(np.float64)
    more = surprise + b[rows, following]
    divergence = (np.exp(b) * (b - a)).sum(axis=1, dtype=np.float64)
    return np.stack([surprise, more, a.argmax(1) == b.argmax(1), divergence])


def _errors(columns: np.ndarray) -> np.ndarray:
    """The standard error of the mean of each row (4, tokens), from its blocks."""
    starts = np.arange(0, columns.shape[1], BLOCK)
    off = columns - columns.mean(axis=1, keepdims=True)
    sums, blocks = np.add.reduceat(off, starts, axis=1), len(starts)
    if blocks == 1:
        return np.full(len(columns), np.inf)
    return np.sqrt((sums**2).sum(axis=1) * blocks / (blocks - 1)) / columns.shape[1]
