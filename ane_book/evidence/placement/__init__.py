"""Where Core ML would run each op of a program, predicted on any machine.

Three parts, each of which can be tested by itself: `support` (whether the ANE takes an op),
`estimator` (what the segmenter believes that it costs) and `path` (which backend it then gets).
`placed` puts them together. No torch, and no weight is read.
"""

from ane_book.evidence.placement.placed import Placement, place

__all__ = ["Placement", "place"]
