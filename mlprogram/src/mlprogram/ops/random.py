"""Random tensors, right in distribution; Apple's generator is not documented, so the draws differ.

A seed other than -1 gives the same draw on every call. With -1 the draw comes from torch's global
generator, which `torch.manual_seed` fixes.

Reference: coremltools `defs/iOS15/random.py`.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import op


def _generator(seed: int) -> torch.Generator | None:
    """A generator that starts at `seed`, or torch's own for -1."""
    return None if seed == -1 else torch.Generator().manual_seed(seed)


def _dtype(_out: list | None) -> torch.dtype:
    """The declared dtype: nothing else tells, since the parameters arrive as Python numbers."""
    return torch.float32 if _out is None else _out[0][0]


@op()
def random_bernoulli(
    shape: list[int], prob: float = 0.5, seed: int = -1, _out: list | None = None
) -> Tensor:
    """1 with probability `prob`, else 0."""
    return (torch.rand(shape, generator=_generator(seed)) < prob).to(_dtype(_out))


@op()
def random_categorical(
    x: Tensor, mode: Literal["logits", "probs"] = "logits", size: int = 1, seed: int = -1
) -> Tensor:
    """`size` indices, drawn with replacement, for each row of logits or probs. x (*B, n) ->
    (*B, size), in the dtype of x."""
    wide = x.float()
    weights = torch.softmax(wide, -1) if mode == "logits" else wide
    rows = weights.reshape(-1, x.shape[-1])
    drawn = torch.multinomial(rows, size, replacement=True, generator=_generator(seed))
    return drawn.view(*x.shape[:-1], size).to(x.dtype)


@op()
def random_normal(
    shape: list[int],
    mean: float = 0.0,
    stddev: float = 1.0,
    seed: int = -1,
    _out: list | None = None,
) -> Tensor:
    """Normal distribution."""
    return (torch.randn(shape, generator=_generator(seed)) * stddev + mean).to(_dtype(_out))


@op()
def random_uniform(
    shape: list[int],
    low: float = 0.0,
    high: float = 1.0,
    seed: int = -1,
    _out: list | None = None,
) -> Tensor:
    """Uniform over [low, high)."""
    dtype = _dtype(_out)
    drawn = torch.rand(shape, generator=_generator(seed)) * (high - low) + low
    # rounding may reach `high`, which does not belong to the interval
    kind = np.float16 if dtype == torch.float16 else np.float32
    below = float(np.nextafter(kind(high), kind(low)))
    return drawn.to(dtype).clamp_max(below)
