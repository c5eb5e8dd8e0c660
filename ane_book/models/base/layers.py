"""Layers in the form the Neural Engine likes: channels first, every projection a 1x1 convolution.

Activations are (1, C, 1, T): the token axis is last, because the ANE pads the last axis to 64
bytes. Attention works on rows, (1, heads, T, D), which is also how the cache stores keys and
values.

Letters: C hidden size, F feed-forward size, H query heads, K key/value heads, G = H / K, D head
size, T tokens of this call, S slots of the cache, L layers, V vocabulary.

References:
- Apple, "Deploying Transformers on the Apple Neural Engine" (2022): Conv2d for Linear, (B, C, 1,
S).
- RMSNorm: Zhang and Sennrich 2019 (arXiv 1910.07467); SwiGLU: Shazeer 2020 (arXiv 2002.05202).
"""

from collections.abc import Callable

from ane_book.models.base.config import DecoderConfig
import numpy as np
import torch
from torch import Tensor, nn
import torch.nn.functional as F

__all__ = [
    "Attention",
    "ClampedSwiGLU",
    "DecoderBlock",
    "FeedForward",
    "NormThenRotate",
    "NormedProjection",
    "RMSNorm",
    "Rotate",
    "RotateThenNorm",
    "Scale",
    "ScaledRMSNorm",
    "gelu_tanh",
    "in_half",
    "projection",
    "rms_normalize",
    "rotate",
]


def projection(inputs: int, outputs: int, bias: bool = False) -> nn.Conv2d:
    """A linear layer in ANE form: a 1x1 convolution over (1, inputs, 1, T)."""
    return nn.Conv2d(inputs, outputs, kernel_size=1, bias=bias)


def rms_normalize(x: Tensor, dim: int, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) along `dim`, without ever holding x^2 in fp16.

    The mean of [x, -x] is zero, so its variance is the mean of x^2, and layer norm of the pair is
    RMS norm of x with the same eps. Core ML has layer_norm as one op, which sums in high precision;
    x^2 as a tensor of its own would pass fp16's 65,504 from |x| = 256 on (coremltools #2821 has
    what goes wrong when one scales by max|x| instead: eps is scaled with it).
    """
    pair = torch.cat([x, -x], dim=dim)
    if dim == x.dim() - 1:
        return F.layer_norm(pair, pair.shape[-1:], eps=eps).narrow(dim, 0, x.shape[dim])
    # Written out, since `F.layer_norm` takes trailing axes only; coremltools fuses it to
    # layer_norm, of axis 1 and no other.
    centred = pair - pair.mean(dim=dim, keepdim=True)
    variance = (centred * centred).mean(dim=dim, keepdim=True)
    return (centred * torch.rsqrt(variance + eps)).narrow(dim, 0, x.shape[dim])


def in_half(number: float) -> float:
    """The nearest number of half precision: a package stores no other, as of a weight."""
    return float(np.float16(number))


class RMSNorm(nn.Module):
    """Root mean square norm over the channels of (1, C, 1, T)."""

    def __init__(self, channels: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_normalize(x, 1, self.eps) * self.weight


class ScaledRMSNorm(RMSNorm):
    """The same times a number of half precision, which stays apart from the weight: their product
    is no such number."""

    def __init__(self, channels: int, eps: float, scale: float):
        super().__init__(channels, eps)
        self.scale = in_half(scale)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Scale(nn.Module):
    """x times a number, as half precision has it."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = in_half(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class NormedProjection(nn.Conv2d):
    """A projection in parts, the first of which are RMS normed, each over all of its rows."""

    def __init__(self, inputs: int, normed: tuple[int, ...], rest: int, eps: float):
        super().__init__(inputs, sum(normed) + rest, kernel_size=1, bias=False)
        self.eps, self.parts = eps, [*normed, rest]
        self.norms = nn.ParameterList(torch.ones(1, rows, 1, 1) for rows in normed)

    def forward(self, x: Tensor) -> Tensor:
        """(1, inputs, 1, T) -> (1, rows of all parts, 1, T)."""
        *parts, rest = super().forward(x).split(self.parts, dim=1)
        pairs = zip(parts, self.norms, strict=True)
        normed = [rms_normalize(part, 1, self.eps) * weight for part, weight in pairs]
        return torch.cat([*normed, rest], dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, dims: int) -> Tensor:
    """Rotary embedding of the first `dims` of D dimensions, rows (1, heads, T, D).

    The tables are those of `Rotary.tables`, (1, 1, T, D): for the other dimensions sin is 0.
    """
    first, second, *rest = x.split(dims // 2, dim=-1)
    return x * cos + torch.cat([second, first, *rest], dim=-1) * sin


class Rotate(nn.Module):
    """What makes queries and keys, rows (1, H+K, T, D), ready for attention: rotary embedding."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.rotary_dim = config.rotary_dim

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(qk, cos, sin, self.rotary_dim)


class NormThenRotate(Rotate):
    """RMS norm of every head of queries and keys, then rotary embedding."""

    def __init__(self, config: DecoderConfig):
        super().__init__(config)
        self.eps = config.rms_norm_eps
        heads = config.num_heads + config.num_kv_heads  # a weight each: they are normed in one go
        self.weight = nn.Parameter(torch.ones(1, heads, 1, config.head_dim))

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().forward(rms_normalize(qk, 3, self.eps) * self.weight, cos, sin)


class RotateThenNorm(NormThenRotate):
    """Rotary embedding, then RMS norm of every head.

    A rotation keeps the mean square, so that only the norm's weights have to come after it; and the
    scale in the tables is not normed away.

    factor: by what queries and keys would be scaled between the two. The norm undoes it but for its
    eps: f x / sqrt(f^2 mean(x^2) + eps) = x / sqrt(mean(x^2) + eps / f^2).
    """

    def __init__(self, config: DecoderConfig, factor: float = 1.0):
        super().__init__(config)
        self.eps /= factor * factor

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qk = rotate(rms_normalize(qk, 3, self.eps), cos, sin, self.rotary_dim)
        return qk * self.weight


class Attention(nn.Module):
    """Grouped-query attention over a cache of S slots and the T tokens of this call.

    Old and new keys meet in the scores, not in the cache: scores over the S slots and over the T
    new tokens are computed apart and joined before the softmax. The cache is only read, so one
    graph serves both cache variants, and no copy of the cache is ever made.

    prepare: what makes queries and keys, (1, H+K, T, D), ready for attention, with the tables.
    qkv: what makes (1, (H+2K)*D, 1, T) of x; by default a projection.
    """

    def __init__(
        self,
        config: DecoderConfig,
        prepare: nn.Module,
        qkv: nn.Module | None = None,
        bias: bool = False,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_heads, config.num_kv_heads, config.head_dim
        C, _, Q, KV = config.widths
        self.qkv = qkv or projection(C, Q + 2 * KV, bias)
        self.prepare = prepare
        self.out = projection(Q, C)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (1,C,1,T), mask (1,1,G*T or 1,S+T), cache (1,K,S,D) -> y, new keys, new values."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        rows = self.qkv(x).view(1, H + 2 * K, D, T).transpose(2, 3)  # (1, H+2K, T, D)
        qk, new_values = rows.split([H + K, K], dim=1)
        q, new_keys = self.prepare(qk, cos, sin).split([H, K], dim=1)
        return self.attend(q, new_keys, new_values, mask, keys, values), new_keys, new_values

    def attend(
        self,
        q: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Rows (1,H,T,D) and (1,K,T,D), mask and cache as in `forward` -> y (1,C,1,T)."""
        H, K, D, T, S = self.heads, self.kv_heads, self.dim, q.shape[2], keys.shape[2]
        # The G query heads of one key/value head become rows of one matrix: no copy of K or V.
        # The scale 1/sqrt(D) came in with the rotary tables (`ane_book.rope`).
        q = q.reshape(1, K, (H // K) * T, D)
        scores = torch.cat([q @ keys.transpose(2, 3), q @ new_keys.transpose(2, 3)], dim=3)
        weights = F.softmax(scores + mask, dim=3)  # (1, K, G*T, S+T)
        old, new = weights.split([S, T], dim=3)
        y = old @ values + new @ new_values  # (1, K, G*T, D)
        y = y.view(1, H, T, D).transpose(2, 3).reshape(1, H * D, 1, T)
        return self.out(y)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh."""
    return F.gelu(x, approximate="tanh")


class ClampedSwiGLU(nn.Module):
    """gpt-oss's activation: gate * sigmoid(alpha * gate) * (up + 1), both kept within a limit."""

    def __init__(self, alpha: float, limit: float):
        super().__init__()
        self.alpha, self.limit = alpha, limit

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(-60000.0, self.limit)  # a bound that is none, but finite in fp16
        up = up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(self.alpha * gate))


class FeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), with gate and up as one convolution; SwiGLU with SiLU."""

    def __init__(self, config: DecoderConfig, activation: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        C, F_ = config.hidden_size, config.intermediate_size
        self.gate_up = projection(C, 2 * F_)
        self.down = projection(F_, C)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=1)  # 2 x (1, F, 1, T)
        return self.down(self.activation(gate) * up)


class DecoderBlock(nn.Module):
    """One layer: attention and feed-forward, the result of each added to the hidden state.

    before_*, after_*: what is done to the input and to the result of each, if anything.
    """

    def __init__(
        self,
        attention: Attention,
        feed_forward: nn.Module,
        *,
        before_attention: nn.Module | None = None,
        after_attention: nn.Module | None = None,
        before_feed_forward: nn.Module | None = None,
        after_feed_forward: nn.Module | None = None,
    ):
        super().__init__()
        self.before_attention = before_attention or nn.Identity()
        self.attention = attention
        self.after_attention = after_attention or nn.Identity()
        self.before_feed_forward = before_feed_forward or nn.Identity()
        self.feed_forward = feed_forward
        self.after_feed_forward = after_feed_forward or nn.Identity()

    def forward(self, hidden, cos, sin, mask, keys, values):
        """hidden (1,C,1,T), this layer's cache (1,K,S,D) -> hidden, new keys, values (1,K,T,D)."""
        y, new_keys, new_values = self.attention(
            self.before_attention(hidden), cos, sin, mask, keys, values
        )
        hidden = hidden + self.after_attention(y)
        y = self.feed_forward(self.before_feed_forward(hidden))
        return hidden + self.after_feed_forward(y), new_keys, new_values
