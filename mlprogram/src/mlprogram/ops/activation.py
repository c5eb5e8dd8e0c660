"""Activations: elementwise but for softmax; the output has the shape and dtype of x.

Where torch's own half kernel equals the float32 kernel rounded once, it is used directly; the
other formulas are evaluated in float32. alpha and beta are scalars, or one value per channel C for
`prelu` and `softplus_parametric`.

Reference: coremltools `defs/iOS15/activation.py`, `defs/iOS17/activation.py`.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op
from .elementwise_unary import one_call

for _name, _function in {"relu": torch.relu, "sigmoid": torch.sigmoid, "silu": F.silu}.items():
    op(_name)(one_call(_function))


@op()
def clamped_relu(x: Tensor, alpha: float, beta: float) -> Tensor:
    """min(beta, x) where x >= 0, min(beta, alpha * x) elsewhere."""
    return F.leaky_relu(x.float(), alpha).clamp_max(beta).to(x.dtype)


@op()
def elu(x: Tensor, alpha: float) -> Tensor:
    """x where x > 0, alpha * (e^x - 1) elsewhere."""
    return F.elu(x.float(), alpha).to(x.dtype)


Mode = Literal["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"]


@op()
def gelu(x: Tensor, mode: Mode = "EXACT") -> Tensor:
    """x times the normal distribution function of x: by erf, or one of two approximations."""
    if mode == "TANH_APPROXIMATION":
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    if mode == "SIGMOID_APPROXIMATION":
        return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
    # written out: torch's own kernel answers NaN for infinity
    return (0.5 * wide * (1.0 + torch.erf(wide * 0.5**0.5))).to(x.dtype)


@op()
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """x where x >= 0, alpha * x elsewhere."""
    return F.leaky_relu(x, alpha)


@op()
def linear_activation(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha * x + beta."""
    return (x.float() * alpha + beta).to(x.dtype)


def per_channel(parameter: Tensor, x: Tensor) -> Tensor:
    """A (C,) parameter as float32 (C, 1, ...), to broadcast over x of (B, C, ...)."""
    return parameter.float().view(-1, *[1] * (x.dim() - 2))


@op()
def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    """x where x > 0, alpha_c * x elsewhere. x (B, C, *D), alpha (C,)."""
    wide = x.float()
    return torch.where(wide > 0, wide, wide * per_channel(alpha, x)).to(x.dtype)


@op()
def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return torch.clamp(x, 0, 6)


@op()
def scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha * tanh(beta * x)."""
    return (alpha * torch.tanh(beta * x.float())).to(x.dtype)


@op()
def sigmoid_hard(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha * x + beta, cut to [0, 1]."""
    return (x.float() * alpha + beta).clamp(0.0, 1.0).to(x.dtype)


@op()
def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), without overflow for large x."""
    return F.softplus(x)


@op()
def softplus_parametric(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """alpha_c * log(1 + e^(beta_c * x)). x (B, C, *D), alpha and beta (C,)."""
    inner = x.float() * per_channel(beta, x)
    return (per_channel(alpha, x) * F.softplus(inner)).to(x.dtype)


@op()
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """e^x over its sum along `axis`; the half kernel sums in float32."""
    return torch.softmax(x, axis)


@op()
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    wide = x.float()
    return (wide / (1.0 + wide.abs())).to(x.dtype)


@op()
def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """x where x >= alpha, 0 elsewhere."""
    return torch.where(x.float() >= alpha, x, 0)
