"""Compressed convolutional attention, and what goes with it, in ANE form: channels first.

Queries and keys are small (compressed: H * D may be half of C or less), and each is mixed with
those of the tokens just before it; half of the values comes from the token before. What a call
needs of the tokens before it, W columns of what its projection makes, comes in as a tail.

Letters: C hidden size, H query heads, K key/value heads, G = H / K, D head size, T tokens of a
call, S slots of the cache, W columns of a tail, R router size, E experts; Q = H * D, KV = K * D.

References: compressed convolutional attention (arXiv 2510.04476); `transformers`,
modeling_zaya.py.
"""

from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.experts.layers import chosen
from ane_book.models.base.layers import Attention, RMSNorm, projection, rms_normalize, rotate
import torch
from torch import Tensor, nn
import torch.nn.functional as F

__all__ = ["CarriedRouter", "CompressedAttention", "CompressedBlock", "Scaling", "swiglu"]

#: Of the mean square of a head, against heads of zeros. The checkpoint's own code bounds the norm
#: instead, in half precision by 1e-3; a mean square of 1e-6 is off by 5e-5 here.
HEAD_EPSILON = 1e-10


class CompressedAttention(Attention):
    """Attention whose queries, keys and values are mixed along the tokens.

    taps: tokens that the depthwise convolution takes, and the grouped one, each head by itself.
    width: W, columns of the tail, (Q + KV + KV/2, W): queries, keys, the values that wait.
    """

    def __init__(self, config: DecoderConfig, taps: tuple[int, int], width: int):
        _, _, Q, KV = config.widths
        super().__init__(config, nn.Identity())  # its projection: q, k, v that waits, v of now
        self.rotary_dim, self.width, self.reach = config.rotary_dim, width, sum(taps) - 2
        self.eps = HEAD_EPSILON
        rows, heads = Q + KV, self.heads + self.kv_heads
        self.depthwise = nn.Conv2d(rows, rows, (1, taps[0]), groups=rows)
        self.grouped = nn.Conv2d(rows, rows, (1, taps[1]), groups=heads)
        self.key_scale = nn.Parameter(torch.ones(1, self.kv_heads, 1, 1))

    def forward(self, x, cos, sin, mask, keys, values, tail):  # type: ignore[override] # a tail too
        """x (1,C,1,T), mask (1,1,G*T or 1,S+T), cache (1,K,S,D), tail (1,Q+KV+KV/2,1,W) -> y, new
        keys, new values, new columns of the tail."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        half = K * D // 2
        new, now = self.qkv(x).split([(H + K) * D + half, half], dim=1)
        columns, waiting = torch.cat([tail, new], dim=3).split([(H + K) * D, half], dim=1)
        mixed = self.grouped(self.depthwise(columns[..., self.width - self.reach :]))
        rows = self._heads(mixed + self._means(new), T)  # (1, H+K, T, D)
        q, k = rotate(rms_normalize(rows, 3, self.eps), cos, sin, self.rotary_dim).split(
            [H, K], dim=1
        )
        k = k * self.key_scale
        before = waiting[..., self.width - 1 : self.width - 1 + T]
        v = self._heads(torch.cat([now, before], dim=1), T)  # (1, K, T, D)
        return self.attend(q, k, v, mask, keys, values), k, v, new

    def _heads(self, x: Tensor, T: int) -> Tensor:
        """(1, heads * D, 1, T) -> (1, heads, T, D)."""
        return x.view(1, -1, self.dim, T).transpose(2, 3)

    def _means(self, new: Tensor) -> Tensor:
        """The mean of every query and its key; of every key and the mean of its queries."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, new.shape[3]
        q, k, _ = new.split([H * D, K * D, K * D // 2], dim=1)
        q = (q.view(K, H // K, D, T) + k.view(K, 1, D, T)) * 0.5  # (K, G, D, T)
        k = q.mean(dim=1, keepdim=True)  # (K, 1, D, T)
        return torch.cat([q.reshape(1, H * D, 1, T), k.reshape(1, K * D, 1, T)], dim=1)


class Scaling(nn.Module):
    """(x + bias) * scale, of every channel its own."""

    def __init__(self, channels: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bias) * self.scale


class CarriedRouter(nn.Module):
    """Gates of the one expert that a token takes, by a small network that remembers.

    Its state is what the layer before's was, times a scale, plus what this layer makes of the
    token. The last of its classes is no expert: a token that takes it takes none. The choice is by
    probabilities plus biases that balance the experts' load; the gate is the probability alone.

    first: there is no layer before.
    """

    def __init__(self, C: int, R: int, experts: int, eps: float, first: bool):
        super().__init__()
        self.down = projection(C, R, bias=True)
        self.carried_scale = None if first else nn.Parameter(torch.ones(1, R, 1, 1))
        self.norm = RMSNorm(R, eps)
        self.hidden = nn.ModuleList(projection(R, R, bias=True) for _ in range(2))
        self.out = projection(R, experts + 1)
        self.balance = nn.Parameter(torch.zeros(1, experts + 1, 1, 1))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (1, C, 1, T), state of the layer before (1, R, 1, T) -> gates (1, E, 1, T), state."""
        new = self.down(x)
        if self.carried_scale is not None:
            assert state is not None, "only the first router has none before it"
            new = new + state * self.carried_scale
        y = self.norm(new)
        for layer in self.hidden:
            y = F.gelu(layer(y))
        shares = F.softmax(self.out(y), dim=1)  # (1, E + 1, 1, T)
        none = torch.zeros(1, shares.shape[1], 1, 1, dtype=shares.dtype)
        gates = torch.where(chosen(shares + self.balance, 1), shares, none)
        return gates.narrow(1, 0, shares.shape[1] - 1), new


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU's activation."""
    return F.silu(gate) * up


class CompressedBlock(nn.Module):
    """Norm, attention; norm, a mixture of experts; hidden state and result scaled in each sum."""

    def __init__(
        self, attention: CompressedAttention, router: CarriedRouter, mixture: nn.Module, eps: float
    ):
        super().__init__()
        C = router.down.in_channels
        self.attention_norm, self.attention = RMSNorm(C, eps), attention
        self.attention_scaling, self.attention_residual = Scaling(C), Scaling(C)
        self.mixture_norm, self.router, self.mixture = RMSNorm(C, eps), router, mixture
        self.mixture_scaling, self.mixture_residual = Scaling(C), Scaling(C)

    def forward(self, hidden, cos, sin, mask, keys, values, tail, *carried):
        """hidden (1,C,1,T), cache (1,K,S,D), tail (1,Q+KV+KV/2,1,W), but in the first layer the
        router's state (1,R,1,T) -> hidden, new keys, values (1,K,T,D), columns of the tail, the
        router's state."""
        y, k, v, new = self.attention(
            self.attention_norm(hidden), cos, sin, mask, keys, values, tail
        )
        hidden = self.attention_scaling(y) + self.attention_residual(hidden)
        x = self.mixture_norm(hidden)
        gates, state = self.router(x, *carried)
        y = self.mixture(x, gates)
        return self.mixture_scaling(y) + self.mixture_residual(hidden), k, v, new, state
