"""Exact rewrites of ops that go element by element."""

from mlprogram.ane.faults.fix.mend import At, Mend
import numpy as np


def pow_two(at: At) -> Mend:
    """pow(2, y) -> exp2(y), an op that coremltools' own tests hold to 2 to the power y."""
    import torch

    y, base = at.value("y"), at.value("x")
    result = at.make.op("exp2", {"x": y})
    if result.type != at.type:  # a base with more elements than y
        result = at.make.op("mul", {"x": result, "y": np.ones(base.type.sizes)})
    shape = base.type.sizes
    return at.mend(result, [y], lambda y: torch.pow(torch.full(shape, 2.0), y))


REWRITES = (pow_two,)
