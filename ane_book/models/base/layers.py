"""The layers of decoders in ANE form: channels first, every projection a 1x1 convolution.

Activations are (1, C, 1, T): the token axis is last, because the ANE pads the last axis to 64
bytes. Attention works on (1, heads, T, D), one row per token, which is also how the KV cache
stores keys and values, or in the form that Apple asks for (`ane_book.models.base.apple`).

References:
- Apple, "Deploying Transformers on the Apple Neural Engine" (2022): Conv2d for Linear, (B, C, 1,
S).
- RMSNorm: Zhang and Sennrich 2019 (arXiv 1910.07467); SwiGLU: Shazeer 2020 (arXiv 2002.05202).
"""

from collections.abc import Callable

from ane_book.layout import Form
from ane_book.models.base import apple
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.projection import Projection
import torch
from torch import Tensor, nn
import torch.nn.functional as F


def rms_normalize(x: Tensor, dim: int, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) along `dim` without an intermediate x^2 in fp16.

    The mean of [x, -x] is zero, so its variance is the mean of x^2, and layer norm of the pair is
    RMS norm of x with the same eps. Core ML's layer_norm is one op that sums in high precision,
    while x^2 as a tensor would overflow fp16 (65,504) from |x| = 256 on. Dividing by max|x| first
    is no way out, since it scales eps too (coremltools #2821).
    """
    pair = torch.cat([x, -x], dim=dim)
    if dim == x.dim() - 1:
        return F.layer_norm(pair, pair.shape[-1:], eps=eps).narrow(dim, 0, x.shape[dim])
    # Written out, since `F.layer_norm` takes trailing axes only. coremltools fuses these ops to
    # layer_norm, for axis 1 only.
    centred = pair - pair.mean(dim=dim, keepdim=True)
    variance = (centred * centred).mean(dim=dim, keepdim=True)
    return (centred * torch.rsqrt(variance + eps)).narrow(dim, 0, x.shape[dim])


class RMSNorm(nn.Module):
    """Root mean square norm over the channels of (1, C, 1, T)."""

    def __init__(self, channels: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_normalize(x, 1, self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor, dims: int, axis: int = 3) -> Tensor:
    """Apply rotary embedding to the first `dims` of the D dimensions on an axis of x.

    x is (1, heads, T, D), with cos and sin (1, 1, T, D) from `Rotary.tables`, where sin is 0 for
    the other dimensions; or (heads, D, 1, T) with tables (1, D, 1, T) and axis 1.
    """
    from_end = axis - x.dim()  # programs have it so, and their bytes are kept
    first, second, *rest = x.split(dims // 2, dim=from_end)
    return x * cos + torch.cat([second, first, *rest], dim=from_end) * sin


class Rotate(nn.Module):
    """Prepare queries and keys, (1, H+K, T, D) or (H+K, D, 1, T), for attention: rotary embedding.

    axis: that of D, 3 or 1.
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.rotary_dim = config.rotary_dim

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor, axis: int = 3) -> Tensor:
        return rotate(qk, cos, sin, self.rotary_dim, axis)


class NormThenRotate(Rotate):
    """RMS norm of every head of queries and keys, then rotary embedding.

    heads: how many there are, by default H + K.
    """

    def __init__(self, config: DecoderConfig, heads: int | None = None):
        super().__init__(config)
        self.eps = config.rms_norm_eps
        heads = heads or config.num_heads + config.num_kv_heads  # one norm, a weight per head
        self.weight = nn.Parameter(torch.ones(1, heads, 1, config.head_dim))

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor, axis: int = 3) -> Tensor:
        normed = rms_normalize(qk, axis, self.eps) * self.weights(axis)
        return super().forward(normed, cos, sin, axis)

    def weights(self, axis: int) -> Tensor:
        """The weights (1, H+K, 1, D); (H+K, D, 1, 1) where D is on axis 1."""
        return self.weight if axis == 3 else self.weight.view(-1, self.weight.shape[3], 1, 1)


class RotateThenNorm(NormThenRotate):
    """Rotary embedding, then RMS norm of every head.

    A rotation keeps the mean square, so the norm may be computed before it and only its weights
    are applied after. That way the norm does not undo the attention scale in the rotary tables.

    factor: what `transformers` multiplies queries and keys by, between rotation and norm. The norm
    undoes that except for eps: f x / sqrt(f^2 mean(x^2) + eps) = x / sqrt(mean(x^2) + eps / f^2).
    """

    def __init__(self, config: DecoderConfig, factor: float = 1.0):
        super().__init__(config)
        self.eps /= factor * factor

    def forward(self, qk: Tensor, cos: Tensor, sin: Tensor, axis: int = 3) -> Tensor:
        qk = rotate(rms_normalize(qk, axis, self.eps), cos, sin, self.rotary_dim, axis)
        return qk * self.weights(axis)


class Attention(nn.Module):
    """Grouped-query attention over a KV cache of S slots and the T tokens of this call.

    Scores over the S slots and over the T new tokens are computed separately and concatenated
    before the softmax. The graph only reads the cache, so it is the same for both cache variants
    and never copies the cache.

    prepare: maps queries and keys (1, H+K, T, D) and the rotary tables to what attention uses.
    qkv: maps x to (1, (H+2K)*D, 1, T); by default a projection. form: "rows", or "apple" with each
    head apart and the shapes of `ane_book.models.base.apple`.
    """

    form: Form = "rows"

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
        self.qkv = qkv or Projection(C, Q + 2 * KV, bias)
        self.prepare = prepare
        self.out: nn.Module = Projection(Q, C)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (1,C,1,T), mask (1,1,G*T or 1,S+T), cache (1,K,S,D) -> y (1,C,1,T), new keys and
        values (1,K,T,D)."""
        if self.form == "apple":
            return self._by_channels(x, cos, sin, mask, keys, values)
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        rows = self.qkv(x).view(1, H + 2 * K, D, T).transpose(2, 3)  # (1, H+2K, T, D)
        qk, v = rows.split([H + K, K], dim=1)
        new_values = self.prepare_values(v)
        q, new_keys = self.prepare(qk, cos, sin).split([H, K], dim=1)
        return self.attend(q, new_keys, new_values, mask, keys, values), new_keys, new_values

    def prepare_values(self, v: Tensor, axis: int = 3) -> Tensor:
        """Prepare values, (1, K, T, D) or (K, D, 1, T), for attention; axis: that of D, 3 or 1."""
        return v

    def _by_channels(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`forward` in the form "apple": cache (1,K*D,1,S), new keys and values (1,K*D,1,T)."""
        H, K, D = self.heads, self.kv_heads, self.dim
        qk, v = apple.split_heads(self.qkv(x), D).split([H + K, K])  # (H+K or K, D, 1, T)
        v = self.prepare_values(v, axis=1)
        q, k = self.prepare(qk, cos, sin, axis=1).split([H, K])
        y = apple.attend(q, k, v, mask, keys, values, group=H // K, D=D)
        return self.out(y), apple.together(k), apple.together(v)

    def attend(
        self,
        q: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """q (1,H,T,D), new keys and values (1,K,T,D), the rest as in `forward` -> y (1,C,1,T)."""
        H, K, D, T, S = self.heads, self.kv_heads, self.dim, q.shape[2], keys.shape[2]
        # The G query heads of one key/value head become rows of one matrix: no copy of K or V.
        # The rotary tables have already applied the scale 1/sqrt(D) (`ane_book.rope`).
        q = q.reshape(1, K, (H // K) * T, D)
        scores = torch.cat([q @ keys.transpose(2, 3), q @ new_keys.transpose(2, 3)], dim=3)
        weights = F.softmax(scores + mask, dim=3)  # (1, K, G*T, S+T)
        old, new = weights.split([S, T], dim=3)
        y = old @ values + new @ new_values  # (1, K, G*T, D)
        y = y.view(1, H, T, D).transpose(2, 3).reshape(1, H * D, 1, T)
        return self.out(y)


class ClampedSwiGLU(nn.Module):
    """gpt-oss's activation: gate * sigmoid(alpha * gate) * (up + 1), with gate and up clamped."""

    def __init__(self, alpha: float, limit: float):
        super().__init__()
        self.alpha, self.limit = alpha, limit

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(-60000.0, self.limit)  # no lower bound, but clip needs a finite fp16
        up = up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(self.alpha * gate))


class FeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), with gate and up as one convolution; SwiGLU with SiLU."""

    def __init__(self, config: DecoderConfig, activation: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        C, F_ = config.hidden_size, config.intermediate_size
        self.gate_up = Projection(C, 2 * F_)
        self.down = Projection(F_, C)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=1)  # 2 x (1, F, 1, T)
        return self.down(self.activation(gate) * up)


class DecoderBlock(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream.

    before_*, after_*: norms of the input and of the result of each; None for no norm.
    """

    def __init__(
        self,
        attention: nn.Module,
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
        """hidden (1,C,1,T), this layer's cache (by rows (1,K,S,D)) -> hidden, new keys, values."""
        y, new_keys, new_values = self.attention(
            self.before_attention(hidden), cos, sin, mask, keys, values
        )
        hidden = hidden + self.after_attention(y)
        y = self.feed_forward(self.before_feed_forward(hidden))
        return hidden + self.after_feed_forward(y), new_keys, new_values
