"""What a token costs on a Neural Engine: predicted from a plan, without a Mac.

    import ane_book
    from ane_book.evidence import cost

    estimate = cost.predict(ane_book.plan("hy-mt", quant="int8"), "m4-max")
    estimate.tokens_s        # an interval: the model knows no bare numbers
    estimate.terms           # what it rests on, with grade and evidence

A token takes the time to read the weights, to read the cache's slots, and what every program takes
beside; where placement finds a converted program in several stretches, what each of those takes:

    programs = [place(package, function="decode") for package in packages]
    work = dataclasses.replace(cost.work_of(plan), segments=cost.segments_of(programs))

`model` has the formula, `chips` its data, and `quoted` the figures that are published of the same
model and chip. Of a mixture of experts, `strategies` says what each way to call them takes, and
where they meet. `ane_book.book` holds the formula against what others measured.

Taught in the chapters "MoE on ANE" and "Cost model".
"""

from ane_book.evidence.cost.chips import chips, find_chip, parameter
from ane_book.evidence.cost.model import (
    Estimate,
    Interval,
    Term,
    TokenWork,
    predict,
    segments_of,
    work_of,
)
from ane_book.evidence.cost.strategies import crossings, facts

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
    "segments_of",
    "work_of",
]
