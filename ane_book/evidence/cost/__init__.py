"""What a token of a planned model takes on a Neural Engine, without a Mac.

    import ane_book
    from ane_book.evidence.cost import work_of
    from mlprogram.ane import cost

    estimate = cost.predict(work_of(ane_book.plan("hy-mt", quant="int8")), "m4-max")
    estimate.tokens_s        # an interval, since every parameter is a range
    estimate.terms           # the parts of the time, with grade and evidence

`mlprogram.ane.cost` has the formula and its parameters; `work` the bytes, slots and calls of a
plan, `quoted` the figures that others measured, and `strategies` compares the strategies for a
mixture of experts.

Taught in the chapters "Experts" and "How fast will it be?".
"""

from ane_book.evidence.cost.strategies import crossings, facts
from ane_book.evidence.cost.work import work_of

__all__ = ["crossings", "facts", "work_of"]
