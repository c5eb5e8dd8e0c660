"""`log_softmax`: from logits to logarithms of probabilities."""

import numpy as np

__all__ = ["log_softmax"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities over the last axis (..., V), in the logits' own type.

    The sum over V is in float64 whatever the type: in float32 that of a large vocabulary would lose
    more than a token's own logarithm does.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    return shifted - np.log(total).astype(shifted.dtype)
