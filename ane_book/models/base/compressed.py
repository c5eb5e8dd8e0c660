"""ZAYA1's layers in ANE form: compressed convolutional attention, and a router with a state.

Queries and keys are compressed (H * D may be half of C or less), and a causal convolution mixes
each with those of the tokens just before it. Half of each value comes from the token before. A
call therefore takes a tail: the projection's last W columns from the call before.

Letters: see `ane_book.models.base`; here also W columns of a tail, and R is the router's size.

References: compressed convolutional attention (arXiv 2510.04476); `transformers`,
modeling_zaya.py.
"""

from ane_book.models.base import apple
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.experts.layers import chosen, of_chosen
from ane_book.models.base.layers import Attention, RMSNorm, rms_normalize, rotate
from ane_book.models.base.projection import Projection
import torch
from torch import Tensor, nn
import torch.nn.functional as F

#: Added to the mean square of a head, so that a head of zeros does not divide by zero. The
#: checkpoint's own code clamps the norm instead (to 1e-3 in fp16). At a mean square of 1e-6 this
#: one changes the result by 5e-5.
HEAD_EPSILON = 1e-10


class CompressedAttention(Attention):
    """Attention whose queries and keys are convolved along the tokens, and half of whose values
    are those of the token before.

    taps: kernel sizes of the depthwise convolution and of the grouped one (one group per head).
    width: W of the tail (Q + KV + KV/2, W): queries, keys, and the half of the values that the
    next token uses.
    """

    def __init__(self, config: DecoderConfig, taps: tuple[int, int], width: int):
        _, _, Q, KV = config.widths
        # The projection's channels: q, k, the values for the next token, those for this one.
        super().__init__(config, nn.Identity())
        self.rotary_dim, self.width, self.reach = config.rotary_dim, width, sum(taps) - 2
        self.eps = HEAD_EPSILON
        rows, heads = Q + KV, self.heads + self.kv_heads
        self.depthwise = nn.Conv2d(rows, rows, (1, taps[0]), groups=rows)
        self.grouped = nn.Conv2d(rows, rows, (1, taps[1]), groups=heads)
        self.key_scale = nn.Parameter(torch.ones(1, self.kv_heads, 1, 1))

    def forward(self, x, cos, sin, mask, keys, values, tail):  # type: ignore[override] # a tail too
        """x (1,C,1,T), mask (1,1,G*T or 1,S+T), cache (1,K,S,D), tail (1,Q+KV+KV/2,1,W) -> y
        (1,C,1,T), new keys and values (1,K,T,D), the tail's new columns (1,Q+KV+KV/2,1,T)."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        half = K * D // 2
        new, now = self.qkv(x).split([(H + K) * D + half, half], dim=1)
        columns, waiting = torch.cat([tail, new], dim=3).split([(H + K) * D, half], dim=1)
        mixed = self.grouped(self.depthwise(columns[..., self.width - self.reach :]))
        if self.form == "apple":
            qk = apple.split_heads(mixed + self._means(new), D)  # (H+K, D, 1, T)
            qk = rotate(rms_normalize(qk, 1, self.eps), cos, sin, self.rotary_dim, axis=1)
            q, k = qk.split([H, K])
            k = k * self.key_scale.view(K, 1, 1, 1)
            before = waiting[..., self.width - 1 : self.width - 1 + T]
            v = apple.split_heads(torch.cat([now, before], dim=1), D)  # (K, D, 1, T)
            y = apple.attend(q, k, v, mask, keys, values, group=H // K, D=D)
            return self.out(y), apple.together(k), apple.together(v), new
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
        """For each query its mean with its key; for each key its mean with its queries' mean."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, new.shape[3]
        q, k, _ = new.split([H * D, K * D, K * D // 2], dim=1)
        q = (q.view(K, H // K, D, T) + k.view(K, 1, D, T)) * 0.5  # (K, G, D, T)
        k = q.mean(dim=1, keepdim=True)  # (K, 1, D, T)
        return torch.cat([q.reshape(1, H * D, 1, T), k.reshape(1, K * D, 1, T)], dim=1)


class Scaling(nn.Module):
    """(x + bias) * scale, with a bias and a scale per channel."""

    def __init__(self, channels: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bias) * self.scale


class CarriedRouter(nn.Module):
    """Top-1 router whose state is carried from layer to layer.

    The state is the previous layer's state times a scale, plus a projection of the token. The
    expert is chosen by probability plus a bias that balances the experts' load, while its gate is
    the probability alone. The last of the E + 1 classes is no expert: a token that takes it gets
    no expert at all.

    first: this is layer 0, to which no state is passed.
    """

    def __init__(self, C: int, R: int, experts: int, eps: float, first: bool):
        super().__init__()
        self.down = Projection(C, R, bias=True)
        self.carried_scale = None if first else nn.Parameter(torch.ones(1, R, 1, 1))
        self.norm = RMSNorm(R, eps)
        self.hidden = nn.ModuleList(Projection(R, R, bias=True) for _ in range(2))
        self.out = Projection(R, experts + 1)
        self.balance = nn.Parameter(torch.zeros(1, experts + 1, 1, 1))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (1, C, 1, T), the previous layer's state (1, R, 1, T) -> gates (1, E, 1, T), state."""
        new = self.down(x)
        if self.carried_scale is not None:
            assert state is not None, "only the first router has none before it"
            new = new + state * self.carried_scale
        y = self.norm(new)
        for layer in self.hidden:
            y = F.gelu(layer(y))
        shares = F.softmax(self.out(y), dim=1)  # (1, E + 1, 1, T)
        gates = of_chosen(shares, chosen(shares + self.balance, 1))
        return gates.narrow(1, 0, shares.shape[1] - 1), new


class CompressedBlock(nn.Module):
    """Norm, attention, residual; norm, mixture of experts, residual. Each residual sum scales both
    the hidden state and what is added, channel by channel."""

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
        """hidden (1,C,1,T), cache (1,K,S,D), tail (1,Q+KV+KV/2,1,W) and, except in layer 0, the
        router's state (1,R,1,T) -> hidden, new keys and values (1,K,T,D), the tail's new columns
        (1,Q+KV+KV/2,1,T), the router's state."""
        y, k, v, new = self.attention(
            self.attention_norm(hidden), cos, sin, mask, keys, values, tail
        )
        hidden = self.attention_scaling(y) + self.attention_residual(hidden)
        x = self.mixture_norm(hidden)
        gates, state = self.router(x, *carried)
        y = self.mixture(x, gates)
        return self.mixture_scaling(y) + self.mixture_residual(hidden), k, v, new, state
