"""Predict the time of a token on a Neural Engine from a plan, without a Mac.

    import ane_book
    from mlprogram.ane import cost

    estimate = cost.predict(ane_book.plan("hy-mt", quant="int8"), "m4-max")
    estimate.tokens_s        # an interval, since every parameter is a range
    estimate.terms           # the parts of the time, with grade and evidence

A token takes the time to read the weights, to read the KV cache, and an overhead for every package
that is called. If placement splits a package into several segments on the engine, each of those
adds an overhead too:

    programs = [place(package, function="decode") for package in packages]
    work = dataclasses.replace(cost.work_of(plan), segments=cost.segments_of(programs))

`model` has the formula, `chips` its parameters, `quoted` the figures that others measured, and
`strategies` compares the strategies for a mixture of experts.

Taught in the chapters "Experts" and "How fast will it be?".
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
    work_of,
)
from mlprogram.ane.cost.strategies import crossings, facts

__all__ = [
    "Estimate",
    "Interval",
    "Term",
    "TokenWork",
    "chips",
    "crossings",
    "facts",
    "find_chip",
    "parameter",
    "predict",
    "saving",
    "segments_of",
    "work_of",
]
