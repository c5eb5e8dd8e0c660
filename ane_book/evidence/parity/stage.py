"""`ParityStage`: the errors of one package on the golden tokens."""

from dataclasses import dataclass
from math import ceil, nan

import numpy as np

SPARED = 0.1  # the share of tokens; one of zaya-small's 64 has a cosine of 0.962, the next 0.998


@dataclass(frozen=True)
class ParityStage:
    """The results of one package, or of the host, on the golden tokens, compared with PyTorch's.

    name: its packages; "embedding" for the host's first step, "whole" for the output of the whole
    bundle. function: of the packages. cosine: the smallest over tokens, without those that `judged`
    spares. error: the largest difference in a token's vector relative to the largest magnitude in
    PyTorch's; the largest over tokens. max_abs: the largest difference of all. agreement: how often
    the top token is PyTorch's, of `tokens`. None: the stage has no such figure.
    """

    name: str
    function: str
    precision: str
    cosine: float | None = None
    error: float | None = None
    max_abs: float | None = None
    agreement: float | None = None
    tokens: int = 0


def padded(hidden: np.ndarray, tokens: int) -> np.ndarray:
    """(C, n) -> (1, C, 1, T), with zeros beyond n."""
    return np.pad(hidden, ((0, 0), (0, tokens - hidden.shape[1])))[None, :, None]


def judged(
    name: str,
    function: str,
    precision: str,
    found: np.ndarray,
    expected: np.ndarray,
    routed: bool = False,
) -> ParityStage:
    """Compare found with expected, (C, T) each, with a column per token.

    routed: the tokens choose experts. In half precision a token with close scores may choose
    another one, which changes its vector; so the worst tenth of the tokens is spared.
    """
    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.abs(a - b).max(axis=0)
        cosine = (a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
        error = off / np.abs(b).max(axis=0)
    spared = ceil(len(cosine) * SPARED) if routed and precision == "fp16" else 0
    spared = min(spared, len(cosine) - 1)
    cosine = float(np.sort(cosine)[spared]) if np.isfinite(cosine).all() else nan
    return ParityStage(name, function, precision, cosine, float(error.max()), float(off.max()))
