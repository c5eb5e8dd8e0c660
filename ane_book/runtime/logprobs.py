"""`log_softmax`: from logits to logarithms of probabilities, and a check of the logits."""

from ane_book.errors import AneBookError
import numpy as np


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
