"""Predict on any machine where Core ML would run each op of a package.

Three parts, each of which can be tested by itself: `support` (whether the ANE takes an op),
`estimator` (the segmenter's estimate of its time) and `path` (which backend it then gets). `placed`
combines them, `edits` looks for changes that would help. Neither torch nor weights are needed.
"""

from mlprogram.ane.placement.placed import Placement, place

__all__ = ["Placement", "place"]
