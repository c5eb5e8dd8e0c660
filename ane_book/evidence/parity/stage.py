"""What a program makes of the golden tokens, in figures."""

from dataclasses import dataclass
from math import ceil, nan

import numpy as np

__all__ = ["ParityStage", "judged", "padded"]

SPARED = 0.1  # of tokens; of zaya-small's 64 golden ones one has a cosine of 0.962, one 0.998


@dataclass(frozen=True)
class ParityStage:
    """What one program, or the host, makes of the golden tokens, against PyTorch.

    name: its packages, "embedding" for what the host begins with, or "whole" for what comes out
    after all of them. function: of the packages. cosine: the smallest over tokens, but for those
    that `judged` spares. error: the
    largest difference in a token's vector, relative to the largest magnitude in PyTorch's, the
    largest over tokens. max_abs: the largest difference of all. agreement: how often the likeliest
    token is PyTorch's, of so many `tokens`. None: it gives nothing of the kind.
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
    """(C, n) -> (1, C, 1, T), zeros beyond n."""
    return np.pad(hidden, ((0, 0), (0, tokens - hidden.shape[1])))[None, :, None]


def judged(
    name: str,
    function: str,
    precision: str,
    found: np.ndarray,
    expected: np.ndarray,
    routed: bool = False,
) -> ParityStage:
    """Found against expected, (C, T) each, a column for a token.

    routed: by experts that each token chooses. In half precision one between two experts may take
    the other one, and then says something else; so of tokens a tenth is spared.
    """
    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = np.abs(a - b).max(axis=0)
        cosine = (a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
        error = apart / np.abs(b).max(axis=0)
    spared = ceil(len(cosine) * SPARED) if routed and precision == "fp16" else 0
    spared = min(spared, len(cosine) - 1)
    cosine = float(np.sort(cosine)[spared]) if np.isfinite(cosine).all() else nan
    return ParityStage(name, function, precision, cosine, float(error.max()), float(apart.max()))
