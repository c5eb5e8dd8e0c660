"""Error feedback: weights rounded one input channel after another, each mending the ones before.

What counts is the output of a projection. For inputs x with second moments H = E[x x'] an
error D of its weights costs tr(D H D'). When an input channel is rounded, the channels that are not
rounded yet can take up most of that error: where H has the inverse U' U, with U upper triangular,
the change that does it best, after channel j was off by d, is d / U[j, j] times row j of U, and
what is left costs (d / U[j, j])^2. This is GPTQ (Frantar, Ashkboos, Hoefler and Alistarh 2022,
arXiv 2210.17323), which solves Optimal Brain Surgeon (Hassibi and Stork 1993) a column at a time.
Channels of large inputs come first, while all others can still make up for them.

Scales and palettes are fixed before the first channel is rounded. They are chosen for the error of
outputs as well: each weight counts by the mean square of its input.

Letters: O output channels, C input channels, G groups of output channels, P entries of a palette.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ane_book.conversion.quantize.encoded import Encoded
from ane_book.conversion.quantize.kmeans import centres, middles
from ane_book.conversion.quantize.schemes import Scheme
import numpy as np
import torch
from torch import Tensor

DAMPING = 0.01  # of the mean square of the inputs, added to each: H of few tokens has no inverse
AT_ONCE = 32  # channels, whose feedback to all later ones is one product
CLIPS = np.linspace(0.4, 1, 13)  # parts of the largest weight that a scale may reach

Nearest = Callable[[Tensor], tuple[Tensor, Tensor]]  # weights (O,) -> their codes, their values


@dataclass(frozen=True)
class Moments:
    """Calibration statistics of a projection.

    order (C,): the input channels, those of the largest inputs first. factor (C, C): U, in that
    order. inputs (C,): mean squares of the inputs. outputs (O,): mean squares of the gradients of
    the loss with respect to the outputs.
    """

    order: Tensor
    factor: Tensor
    inputs: Tensor
    outputs: Tensor

    def of_rows(self, rows: Tensor) -> "Moments":
        """The statistics of some output channels."""
        return Moments(self.order, self.factor, self.inputs, self.outputs[rows])


def moments_of(second: Tensor, outputs: Tensor) -> Moments:
    """Moments from H (C, C), the mean of x x' of the inputs, and the gradients' squares (O,)."""
    inputs = second.diagonal().clone()
    order = inputs.argsort(descending=True, stable=True)
    damped = second[order][:, order].double()
    damped.diagonal().add_(DAMPING * inputs.mean().double() + 1e-12)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor = torch.linalg.cholesky(inverse, upper=True).float()
    return Moments(order, factor, inputs, outputs)


def encode(weight: Tensor, scheme: Scheme, moments: Moments) -> tuple[Encoded, float]:
    """Encode a projection (O, C, 1, 1) by a scheme: a scale for each output channel, or palettes.

    Returns its operands, and the loss that they are expected to cost, in nats a token: half of the
    outputs' mean square errors, each weighted by the mean square gradient of the loss.
    """
    rows, bits = weight.reshape(len(weight), -1).float(), scheme.bits  # (O, C)
    if scheme.form == "linear":
        scale = _scales(rows, bits, moments)  # (O,)
        codes, errors = _feedback(rows, moments, _on_a_grid(scale, bits))
        data = codes.reshape(weight.shape).numpy()
        encoded = Encoded.linear(bits, data, scale.half().reshape(-1, 1, 1, 1).numpy())
    else:
        groups = scheme.groups(len(rows))
        lut = _palettes(rows, groups, bits, moments)  # (G, P)
        codes, errors = _feedback(rows, moments, _in_palettes(lut))
        indices = codes.view(torch.uint8).reshape(weight.shape).numpy()
        shared = lut.half().reshape(groups, 1, 1, 1, -1, 1).numpy()
        encoded = Encoded.palette(bits, indices, shared)
    return encoded, float(errors @ moments.outputs) / 2


def _scales(rows: Tensor, bits: int, moments: Moments) -> Tensor:
    """The scale of each output (O,) in values of fp16: of all CLIPS that with the least error."""
    largest, levels = rows.abs().amax(dim=1), 2 ** (bits - 1) - 1
    best, least = torch.ones(len(rows)), torch.full((len(rows),), torch.inf)
    for part in CLIPS:
        scale = (largest * float(part) / levels).half().float()
        scale = scale.where(scale > 0, 1)
        _, values = _on_a_grid(scale, bits)(rows.T)  # (C, O)
        error = moments.inputs @ (values - rows.T).square()  # (O,)
        best, least = best.where(error >= least, scale), least.minimum(error)
    return best


def _on_a_grid(scale: Tensor, bits: int) -> Nearest:
    levels = 2 ** (bits - 1) - 1

    def nearest(weights: Tensor) -> tuple[Tensor, Tensor]:
        codes = (weights / scale).round_().clamp_(-levels, levels)
        return codes.to(torch.int8), (codes * scale).half().float()

    return nearest


def _palettes(rows: Tensor, groups: int, bits: int, moments: Moments) -> Tensor:
    """The palette of each group, (G, P) in values of fp16, ascending."""
    counts = moments.inputs / moments.inputs.mean().clamp(min=1e-30)
    counts = counts.clamp(min=1e-6)  # no weight counts for nothing
    counts = counts.expand(rows.shape).reshape(groups, -1)
    return centres(rows.reshape(groups, -1), 1 << bits, counts).half().float()


def _in_palettes(lut: Tensor) -> Nearest:
    between = middles(lut)  # (G, P - 1)

    def nearest(weights: Tensor) -> tuple[Tensor, Tensor]:
        codes = torch.searchsorted(between, weights.reshape(len(lut), -1).contiguous())
        values = lut.gather(1, codes).reshape(weights.shape)
        return codes.to(torch.uint8).view(torch.int8).reshape(weights.shape), values

    return nearest


def _feedback(rows: Tensor, moments: Moments, nearest: Nearest) -> tuple[Tensor, Tensor]:
    """Codes int8 (O, C) of weights (O, C), and the mean square error of each output (O,)."""
    U, order = moments.factor, moments.order
    left = rows.T[order].contiguous()  # (C, O): a channel is one stretch of memory
    codes, errors = torch.empty(left.shape, dtype=torch.int8), torch.zeros(len(rows))
    for first in range(0, len(left), AT_ONCE):
        end = min(first + AT_ONCE, len(left))
        off = torch.empty(end - first, len(rows))
        for j in range(first, end):
            codes[j], values = nearest(left[j])
            off[j - first] = (left[j] - values) / U[j, j]
            left[j + 1 : end] -= U[j, j + 1 : end, None] * off[j - first]
        left[end:] -= U[first:end, end:].T @ off
        errors += off.square().sum(dim=0)
    ordered = torch.empty_like(codes)
    ordered[order] = codes
    return ordered.T.contiguous(), errors
