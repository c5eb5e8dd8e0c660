"""How many experts the tokens of a call wake.

Letters: L layers, E experts, T tokens of a call.
"""

import numpy as np

__all__ = ["woken"]


def woken(shares: np.ndarray, tokens: int) -> np.ndarray:
    """The expected number of experts that some token of a call chooses, of every layer (L,).

    shares: (L, E), of all tokens those that choose an expert: the counts of a router's choices over
    the number of tokens, or k / E everywhere where nothing is known. Exact for tokens that choose
    independently of each other; real ones, which resemble their neighbours, wake fewer.
    """
    return (1.0 - (1.0 - np.asarray(shares, np.float64)) ** tokens).sum(axis=1)
