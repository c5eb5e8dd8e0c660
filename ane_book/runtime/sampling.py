"""From logits to the next token: greedy, or drawn with temperature, top-k, top-p and min-p.

Names, order (temperature, top-k, top-p, min-p) and edge cases are those of `transformers`' logits
warpers, so that a setting copied from elsewhere means the same here. Before them, and for a greedy
choice too, come OpenAI's `logit_bias` and penalties, and the form that an answer has to keep.

References: nucleus sampling, Holtzman et al. 2019 (arXiv 1904.09751).
Letters: V vocabulary.
"""

from collections import Counter
from dataclasses import dataclass, field

from ane_book.options import Sampling, checked
from ane_book.runtime.grammar import Mask
from ane_book.runtime.logprobs import check_logits, log_softmax
import numpy as np

#: Below it a division by the temperature leaves float32's range, or divides by 0. At it two logits
#: that differ at all are so far apart already that only the likeliest token can be drawn.
COLDEST = 1e-30


def keep_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """(V,) with all but the k largest at -inf; what ties with the k-th stays."""
    if k >= logits.size:
        return logits
    smallest_kept = np.partition(logits, -k)[-k]
    return np.where(logits < smallest_kept, -np.inf, logits)


def keep_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """(V,) with all but the smallest set of tokens whose probabilities reach p at -inf."""
    candidates = np.flatnonzero(np.isfinite(logits))  # a top-k before this one spares the long sort
    order = candidates[np.argsort(logits[candidates], kind="stable")]  # ascending
    cumulative = np.cumsum(_softmax(logits[order]), dtype=np.float64)
    dropped = cumulative <= 1.0 - p
    dropped[-1] = False  # the likeliest token always stays
    kept = logits.copy()
    kept[order[dropped]] = -np.inf
    return kept


def keep_min_p(logits: np.ndarray, p: float) -> np.ndarray:
    """(V,) with tokens at -inf that are less than p times as likely as the likeliest one."""
    return np.where(logits < logits.max() + np.log(np.float32(p)), -np.inf, logits)


def filter_logits(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> np.ndarray:
    """Logits (V,) float32 scaled by 1 / temperature, with the tokens not to be drawn at -inf."""
    logits = logits.astype(np.float32) / np.float32(max(temperature, COLDEST))
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None and top_p < 1.0:
        logits = keep_top_p(logits, top_p)
    if min_p:
        logits = keep_min_p(logits, min_p)
    return logits


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


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


@dataclass
class Sampler:
    """Draws tokens; with temperature 0 it takes the likeliest, whatever top_k, top_p and seed are.

    The fields are those of `ane_book.options.Sampling`; `mask` holds one answer to a form, and
    penalties count the tokens of one answer, so a sampler draws for one.
    With `logprobs`, `drawn` collects them for each token, and for so many of the likeliest ones.
    The same seed and logits give the same tokens; without a seed every sampler differs.
    Raises InvalidInput for a value that makes no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    min_p: float | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    mask: Mask | None = None

    def __post_init__(self):
        checked(Sampling, {name: value for name, value in vars(self).items() if name != "mask"})
        self.drawn: list[TokenLogprobs] = []
        self._random = np.random.default_rng(self.seed)
        self._counts: Counter[int] = Counter()  # of the tokens of the answer

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __call__(self, logits: np.ndarray) -> int:
        """The next token's id, from logits (V,) float32; draws once unless greedy.

        Raises AneBookError when the largest logit is NaN or infinite.
        """
        check_logits(logits)
        token = self._token(self._shaped(logits))
        self._counts[token] += 1
        if self.mask is not None:
            self.mask.take(token)
        if self.logprobs is not None:
            self.drawn.append(TokenLogprobs.of(token, logits, self.logprobs))
        return token

    def _shaped(self, logits: np.ndarray) -> np.ndarray:
        """The logits (V,) with bias and penalties, and without what leaves the form."""
        changed = dict(self.logit_bias)
        if self.presence_penalty or self.frequency_penalty:
            for token, count in self._counts.items():
                penalty = self.presence_penalty + self.frequency_penalty * count
                changed[token] = changed.get(token, 0.0) - penalty
        if changed:
            logits = logits.astype(np.float32)
            logits[list(changed)] += np.array(list(changed.values()), dtype=np.float32)
        return logits if self.mask is None else self.mask.apply(logits)

    def _token(self, logits: np.ndarray) -> int:
        if self.greedy:
            return int(np.argmax(logits))
        kept = filter_logits(logits, self.temperature, self.top_k, self.top_p, self.min_p)
        cumulative = np.cumsum(_softmax(kept), dtype=np.float64)
        drawn = self._random.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))
