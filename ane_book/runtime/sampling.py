"""From logits to the next token: greedy, or drawn with temperature, top-k, top-p and min-p.

Names, order (temperature, top-k, top-p, min-p) and edge cases are those of `transformers`' logits
warpers, so that a setting copied from elsewhere means the same here. Before them, and for a greedy
choice too, come OpenAI's `logit_bias` and penalties, and the form that an answer has to keep.

References: nucleus sampling, Holtzman et al. 2019 (arXiv 1904.09751).
Letters: V vocabulary.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ane_book.errors import AneBookError
from ane_book.options import Sampling
import numpy as np

if TYPE_CHECKING:
    from ane_book.runtime.grammar import Mask

#: Below it a division by the temperature leaves float32's range, or divides by 0. At it two logits
#: that differ at all are so far apart already that only the likeliest token can be drawn.
COLDEST = 1e-30


def keep_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """(V,) with all but the smallest set of tokens whose probabilities reach p at -inf."""
    candidates = np.flatnonzero(np.isfinite(logits))  # a top-k before this one spares the long sort
    order = candidates[np.argsort(logits[candidates], kind="stable")]  # ascending
    cumulative = np.cumsum(_weights(logits[order]))
    dropped = cumulative <= (1.0 - p) * cumulative[-1]
    dropped[-1] = False  # the likeliest token always stays
    kept = logits.copy()
    kept[order[dropped]] = -np.inf
    return kept


def filter_logits(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> np.ndarray:
    """Logits (V,) float32 scaled by 1 / temperature, with the tokens not to be drawn at -inf."""
    logits = logits.astype(np.float32) / np.float32(max(temperature, COLDEST))
    if top_k is not None and top_k < logits.size:  # what ties with the k-th stays
        logits = np.where(logits < np.partition(logits, -top_k)[-top_k], -np.inf, logits)
    if top_p is not None and top_p < 1.0:
        logits = keep_top_p(logits, top_p)
    if min_p:  # of the likeliest token's probability
        least = logits.max() + np.log(np.float32(min_p))
        logits = np.where(logits < least, -np.inf, logits)
    return logits


def _weights(logits: np.ndarray) -> np.ndarray:
    """Probabilities beside that of the likeliest token, float64: in float32 another library's exp
    differs in the last digit, and with it now and then a token that is drawn."""
    return np.exp(logits - logits.max(), dtype=np.float64)


def check_logits(logits: np.ndarray) -> None:
    """Raise AneBookError where the largest of logits (..., V) is NaN or infinite.

    No token can then be drawn, and the likeliest would be a guess.
    """
    largest = logits.max(axis=-1)  # NaN counts as the largest
    if not np.isfinite(largest).all():
        what = "NaN" if np.isnan(largest).any() else "infinities"
        raise AneBookError(
            f"the model's logits hold {what}: something overflowed fp16 (largest number "
            '65,504); precision="fp32" shows what they should be'
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities over the last axis (..., V), in the logits' own type.

    The sum over V is in float64 whatever the type: in float32 that of a large vocabulary would lose
    more than a token's own logarithm does.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    return shifted - np.log(total).astype(shifted.dtype)


@dataclass(frozen=True)
class TokenLogprobs:
    """A token, the logarithm of its probability, and those of the likeliest tokens, by token.

    They are the model's, before temperature, top-k and top-p.
    """

    token: int
    logprob: float
    likeliest: dict[int, float]

    @classmethod
    def of(cls, token: int, logits: np.ndarray, top: int) -> "TokenLogprobs":
        """A token drawn from logits (V,), and the `top` likeliest ones."""
        logprobs = log_softmax(logits.astype(np.float64))
        likeliest = np.argsort(-logprobs, kind="stable")[:top]
        return cls(token, float(logprobs[token]), {int(i): float(logprobs[i]) for i in likeliest})


class Sampler:
    """Draws the tokens of one answer; with temperature 0 it takes the likeliest, whatever top_k,
    top_p and seed are.

    mask: holds the answer to a form. With `logprobs`, `drawn` collects them for each token, and for
    so many of the likeliest ones. The same seed and logits give the same tokens; without a seed
    every sampler differs.
    """

    def __init__(self, how: Sampling, mask: "Mask | None" = None):
        self.how, self.mask = how, mask
        self.drawn: list[TokenLogprobs] = []
        self._random = np.random.default_rng(how.seed)
        self._counts: Counter[int] = Counter()  # of the tokens of the answer

    def __call__(self, logits: np.ndarray) -> int:
        """The next token's id, from logits (V,) float32; draws once unless greedy.

        Raises AneBookError when the largest logit is NaN or infinite.
        """
        check_logits(logits)
        token = self._token(self._shaped(logits))
        self._counts[token] += 1
        if self.mask is not None:
            self.mask.take(token)
        if self.how.logprobs is not None:
            self.drawn.append(TokenLogprobs.of(token, logits, self.how.logprobs))
        return token

    def _shaped(self, logits: np.ndarray) -> np.ndarray:
        """The logits (V,) with bias and penalties, and without what leaves the form."""
        how = self.how
        changed = dict(how.logit_bias)
        if how.presence_penalty or how.frequency_penalty:
            for token, count in self._counts.items():
                penalty = how.presence_penalty + how.frequency_penalty * count
                changed[token] = changed.get(token, 0.0) - penalty
        if changed:
            logits = logits.astype(np.float32)
            logits[list(changed)] += np.array(list(changed.values()), dtype=np.float32)
        return logits if self.mask is None else self.mask.apply(logits)

    def _token(self, logits: np.ndarray) -> int:
        how = self.how
        if how.temperature == 0:
            return int(np.argmax(logits))
        kept = filter_logits(logits, how.temperature, how.top_k, how.top_p, how.min_p)
        cumulative = np.cumsum(_weights(kept))
        drawn = self._random.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))
