"""How many experts the tokens of a call choose.

Letters: L layers, E experts.
"""

import numpy as np


def woken(shares: np.ndarray, tokens: int) -> np.ndarray:
    """The expected number of experts that some token of a call chooses, in each layer (L,).

    shares: (L, E), the share of tokens that choose an expert: the counts of a router's choices over
    the number of tokens, or k / E everywhere where nothing is known. Exact for tokens that choose
    independently of each other; real ones, which resemble their neighbours, wake fewer.
    """
    return (1.0 - (1.0 - np.asarray(shares, np.float64)) ** tokens).sum(axis=1)
