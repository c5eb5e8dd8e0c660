"""What a program is computed in, by name: "fp16", "fp32", "ane", or "ane:" and some of its faults.

A fault is one way in which the Neural Engine is published to part from half precision. Each has a
name here; `engine.py` has what it does, its source, and where that source saw it. "ane" is all of
them, "ane:silu,products" these two. Neither is the engine: sources disagree, and nobody outside of
Apple knows the rest.
"""

from mlprogram.errors import InvalidInput

__all__ = ["FAULTS", "check_precision", "described", "faults_of"]

#: Each fault and what it is in a few words.
FAULTS = {
    "accumulator": "sums of products in 16 bits before and 16 after the point",
    "products": "products of small numbers dropped",
    "rounding": "halves rounded away from zero",
    "subnormals": "results below 2^-14 of sums of products are zero",
    "nonfinite": "infinity and NaN read as numbers",
    "silu": "silu by 32 straight lines",
    "gelu": "gelu by 32 straight lines",
    "softplus": "softplus is zero where e^x overflows",
    "sigmoid": "sigmoid by 32 straight lines",
    "tanh": "tanh by 64 straight lines",
}


def faults_of(precision: str) -> frozenset[str]:
    """The faults that a precision names; none for "fp16" and "fp32". Raises InvalidInput."""
    if precision in ("fp16", "fp32"):
        return frozenset()
    if precision == "ane":
        return frozenset(FAULTS)
    kind, _, names = str(precision).partition(":")
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in FAULTS]
    if kind != "ane":
        raise InvalidInput(
            f'precision must be "fp16", "fp32", "ane" or "ane:" and faults, not {precision!r}'
        )
    if unknown:
        raise InvalidInput(
            f"precision {precision!r}: no fault {unknown[0]!r}; there are: {', '.join(FAULTS)}"
        )
    return frozenset(chosen)


def check_precision(precision: str) -> str:
    """The precision as it is given. Raises InvalidInput for one that there is not."""
    faults_of(precision)
    return precision


def described(precision: str) -> str:
    """A precision in a few words, to follow "computed"."""
    if precision in ("fp16", "fp32"):
        return {"fp16": "as declared", "fp32": "in fp32"}[precision]
    _, _, names = precision.partition(":")
    return f"with the engine's {names}" if names else "in the engine's arithmetic"
