"""Layers that only these families have, in ANE form as those in `ane_book.models.base`.

Letters: see `ane_book.models.base`.
"""

from ane_book.models.base.experts.layers import TopGates, chosen, of_chosen
from ane_book.models.base.layers import (
    Attention,
    DecoderBlock,
    RMSNorm,
    rms_normalize,
)
from ane_book.models.base.projection import Projection
import numpy as np
import torch
from torch import Tensor, nn
import torch.nn.functional as F


def in_half(number: float) -> float:
    """Round to the nearest fp16 number, the precision in which a package stores constants."""
    return float(np.float16(number))


class ScaledRMSNorm(RMSNorm):
    """RMSNorm times an fp16 scale. The scale is not folded into the weight, because their product
    is in general not an fp16 number."""

    def __init__(self, channels: int, eps: float, scale: float):
        super().__init__(channels, eps)
        self.scale = in_half(scale)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Scale(nn.Module):
    """x times a number that is rounded to fp16."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = in_half(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Softcap(nn.Module):
    """Logits between -cap and cap. A program has cap and 1 / cap in fp16, which moves a logit by
    less than its own rounding does, and all in the same order."""

    def __init__(self, cap: float):
        super().__init__()
        self.cap, self.inverse = in_half(cap), in_half(1 / cap)

    def forward(self, logits: Tensor) -> Tensor:
        return torch.tanh(logits * self.inverse) * self.cap


class NormedProjection(Projection):
    """A fused projection whose first parts are RMS normed, each over all of its channels."""

    def __init__(self, inputs: int, normed: tuple[int, ...], rest: int, eps: float):
        super().__init__(inputs, sum(normed) + rest)
        self.eps, self.parts = eps, [*normed, rest]
        self.norms = nn.ParameterList(torch.ones(1, rows, 1, 1) for rows in normed)

    def forward(self, x: Tensor) -> Tensor:
        """(1, inputs, 1, T) -> (1, channels of all parts, 1, T)."""
        *parts, rest = super().forward(x).split(self.parts, dim=1)
        pairs = zip(parts, self.norms, strict=True)
        normed = [rms_normalize(part, 1, self.eps) * weight for part, weight in pairs]
        return torch.cat([*normed, rest], dim=1)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation."""
    return F.gelu(x, approximate="tanh")


class TextBlock(nn.Module):
    """A decoder's block over the tokens of one call alone: it takes no cache and returns none.

    It has the modules of a `DecoderBlock`, under their names.
    """

    attention: Attention
    before_attention: nn.Module
    after_attention: nn.Module
    feed_forward: nn.Module
    before_feed_forward: nn.Module
    after_feed_forward: nn.Module

    def __init__(self, block: nn.Module):
        super().__init__()
        for name, module in block.named_children():
            self.add_module(name, module)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """hidden (1, C, 1, T), tables (1, 1, T, D), mask (1, 1, T, T) -> hidden."""
        y = self._attend(self.before_attention(hidden), cos, sin, mask)
        hidden = hidden + self.after_attention(y)
        y = self.feed_forward(self.before_feed_forward(hidden))
        return hidden + self.after_feed_forward(y)

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Attention among the T tokens of this call alone, without a cache: x (1,C,1,T), mask
        (1,1,T,T) -> y (1,C,1,T)."""
        own = self.attention
        H, K, D, T = own.heads, own.kv_heads, own.dim, x.shape[3]
        rows = own.qkv(x).view(1, H + 2 * K, D, T).transpose(2, 3)  # (1, H+2K, T, D)
        qk, v = rows.split([H + K, K], dim=1)
        q, k = own.prepare(qk, cos, sin).split([H, K], dim=1)
        scores = q.reshape(1, K, (H // K) * T, D) @ k.transpose(2, 3)  # (1, K, G*T, T)
        weights = F.softmax(scores.view(1, H, T, T) + mask, dim=3)
        y = weights.reshape(1, K, (H // K) * T, T) @ v  # (1, K, G*T, D)
        return own.out(y.view(1, H, T, D).transpose(2, 3).reshape(1, H * D, 1, T))


class SoftmaxRouter(nn.Module):
    """Gates of the k experts with the largest scores: their shares of a softmax, over these k where
    `normed`, else over all experts."""

    def __init__(self, C: int, experts: int, k: int, normed: bool):
        super().__init__()
        self.scores, self.k, self.normed = Projection(C, experts), k, normed

    def forward(self, x: Tensor) -> Tensor:
        """x (1, C, 1, T) -> gates (1, E, 1, T)."""
        scores = self.scores(x)
        if self.normed:
            return TopGates(self.k)(scores)
        return of_chosen(F.softmax(scores, dim=1), chosen(scores, self.k))


class SigmoidRouter(nn.Module):
    """Gates that are sigmoids of the scores, for the k experts that are chosen by gate plus bias.

    A bias balances the experts' load and is no part of the gate. normed: each token's gates are
    divided by their sum. scale: what all are multiplied by then.
    """

    def __init__(
        self, C: int, experts: int, k: int, normed: bool, *, biased: bool, scale: float = 1.0
    ):
        super().__init__()
        self.scores, self.k, self.normed = Projection(C, experts), k, normed
        self.balance = nn.Parameter(torch.zeros(1, experts, 1, 1)) if biased else None
        self.scale = in_half(scale)

    def forward(self, x: Tensor) -> Tensor:
        """x (1, C, 1, T) -> gates (1, E, 1, T)."""
        shares = torch.sigmoid(self.scores(x))
        by = shares if self.balance is None else shares + self.balance
        gates = of_chosen(shares, chosen(by, self.k))
        if self.normed:
            gates = gates / (gates.sum(dim=1, keepdim=True) + 1e-6)
        return gates if self.scale == 1.0 else gates * self.scale


class MixtureBlock(nn.Module):
    """A layer of a dense decoder whose feed-forward is a mixture of experts instead.

    dense: that layer, of which attention, or what stands in its place, and the norms before both
    parts are taken. router: maps x (1, C, 1, T) to gates (1, E, 1, T).
    """

    def __init__(self, dense: DecoderBlock, router: nn.Module, mixture: nn.Module):
        super().__init__()
        self.before_attention, self.attention = dense.before_attention, dense.attention
        self.before_feed_forward = dense.before_feed_forward
        self.router, self.mixture = router, mixture

    def forward(self, hidden, *given):
        """hidden (1,C,1,T), what attention takes beside it -> hidden, what it returns beside what
        it adds."""
        y, *new = self.attention(self.before_attention(hidden), *given)
        hidden = hidden + y
        x = self.before_feed_forward(hidden)
        return hidden + self.mixture(x, self.router(x)), *new
