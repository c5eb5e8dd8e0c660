"""How many experts the tokens of a call wake, and from how many on it makes no difference.

Letters: L layers, E experts, T tokens of a call.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ane_book.conversion.plan import Plan

__all__ = ["MOST", "crossing", "woken"]

#: Tokens of a call beyond which `crossing` does not look.
MOST = 1 << 16


def woken(shares: np.ndarray, tokens: int) -> np.ndarray:
    """The expected number of experts that some token of a call chooses, of every layer (L,).

    shares: (L, E), of all tokens those that choose an expert: the counts of a router's choices over
    the number of tokens, or k / E everywhere where nothing is known. Exact for tokens that choose
    independently of each other; real ones, which resemble their neighbours, wake fewer.
    """
    return (1.0 - (1.0 - np.asarray(shares, np.float64)) ** tokens).sum(axis=1)


def crossing(apart: "Plan", whole: "Plan", shares: np.ndarray | None = None) -> int | None:
    """The fewest tokens of a call whose experts, called one by one, read as much as all at once.

    None where that is more than MOST tokens, or never. The few bytes by which many files are larger
    than one decide it: so it says from where on nearly all experts are awake.
    """
    least = whole.read_bytes()
    found = bisect_left(
        range(1, MOST + 1), True, key=lambda tokens: apart.read_bytes(tokens, shares) >= least
    )
    return found + 1 if found < MOST else None
