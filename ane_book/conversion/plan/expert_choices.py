"""How many experts the tokens of a call choose, and from how many tokens on it is nearly all.

Letters: L layers, E experts, T tokens of a call.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ane_book.conversion.plan import Plan


#: Tokens of a call beyond which `crossing` does not look.
MOST = 1 << 16


def woken(shares: np.ndarray, tokens: int) -> np.ndarray:
    """The expected number of experts that some token of a call chooses, in each layer (L,).

    shares: (L, E), the share of tokens that choose an expert: the counts of a router's choices over
    the number of tokens, or k / E everywhere where nothing is known. Exact for tokens that choose
    independently of each other; real ones, which resemble their neighbours, wake fewer.
    """
    return (1.0 - (1.0 - np.asarray(shares, np.float64)) ** tokens).sum(axis=1)


def crossing(apart: "Plan", whole: "Plan", shares: np.ndarray | None = None) -> int | None:
    """The fewest tokens of a call that read as many bytes with experts apart as with all in one.

    None where that is more than MOST tokens, or never. Many files are a few bytes larger than one,
    so this is where nearly all experts are chosen.
    """
    least = whole.read_bytes()
    index = bisect_left(
        range(1, MOST + 1), True, key=lambda tokens: apart.read_bytes(tokens, shares) >= least
    )
    return index + 1 if index < MOST else None
