"""Predict the time of a token on a Neural Engine from what it reads and calls, without a Mac.

    from mlprogram.ane import cost

    work = cost.TokenWork(plain_bytes=540_000_000, packed_bytes=0, cache_bytes=0, programs=2)
    estimate = cost.predict(work, "m4-max")
    estimate.tokens_s        # an interval, since every parameter is a range
    estimate.terms           # the parts of the time, with grade and evidence

A token takes the time to read the weights, to read the KV cache, and an overhead for every package
that is called. If placement splits a package into several segments on the engine, each of those
adds an overhead too:

    programs = [place(package, function="decode") for package in packages]
    work = dataclasses.replace(work, segments=cost.segments_of(programs))

`model` has the formula, `chips` its parameters, `devices` the memory of phones and Macs.
"""

from mlprogram.ane.cost.chips import chips, find_chip, parameter
from mlprogram.ane.cost.model import (
    Estimate,
    Interval,
    Term,
    TokenWork,
    predict,
    saving,
    segments_of,
)

__all__ = [
    "Estimate",
    "Interval",
    "Term",
    "TokenWork",
    "chips",
    "find_chip",
    "parameter",
    "predict",
    "saving",
    "segments_of",
]
