"""Layers that share keys and values, and layers with an input of their own: Gemma 4's.

Letters: see `ane_book.models.base`; P channels of a layer's own input.

Reference: `transformers`, modeling_gemma4.py.
"""

from ane_book.models.base import apple
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.layers import (
    Attention,
    DecoderBlock,
    NormThenRotate,
    RMSNorm,
    rms_normalize,
)
from ane_book.models.base.projection import Projection
from ane_families.layers import gelu_tanh
import torch
from torch import Tensor, nn


class Lending(Attention):
    """Attention with normed values, which hands its new keys and values on if it `lends` them."""

    def __init__(self, config: DecoderConfig, lends: bool):
        super().__init__(config, NormThenRotate(config))
        self.eps, self.lends = config.rms_norm_eps, lends

    def prepare_values(self, v: Tensor, axis: int = 3) -> Tensor:
        return rms_normalize(v, axis, self.eps)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """As `Attention`; with `lends`, new keys and values as (1, K*D, 1, T) behind the rest,
        unless they have that shape: in the form "apple"."""
        y, *new = super().forward(*given)
        if not self.lends or self.form == "apple":
            return y, *new
        shape = 1, self.kv_heads * self.dim, 1, y.shape[3]
        return y, *new, *(rows.transpose(2, 3).reshape(shape) for rows in new)


class Borrowing(Attention):
    """Attention that has queries alone, to the cache and new rows of a layer before it."""

    def __init__(self, config: DecoderConfig):
        C, _, Q, _ = config.widths
        super().__init__(config, NormThenRotate(config, config.num_heads), Projection(C, Q))

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
    ) -> tuple[Tensor]:
        """As `Attention`, with new keys and values (1, K*D, 1, T), and y (1, C, 1, T) alone."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        if self.form == "apple":
            q = self.prepare(apple.split_heads(self.qkv(x), D), cos, sin, axis=1)
            k, v = (apple.split_heads(rows, D) for rows in (new_keys, new_values))
            y = apple.attend(q, k, v, mask, keys, values, group=H // K, D=D)
            return (self.out(y),)
        q = self.prepare(self.qkv(x).view(1, H, D, T).transpose(2, 3), cos, sin)
        k, v = (rows.view(1, K, D, T).transpose(2, 3) for rows in (new_keys, new_values))
        return (self.attend(q, k, v, mask, keys, values),)


class Gate(nn.Module):
    """What a layer makes of its own input: norm(up(gelu(down(x)) * own))."""

    def __init__(self, C: int, P: int, eps: float):
        super().__init__()
        self.down, self.up = Projection(C, P), Projection(P, C)
        self.norm = RMSNorm(C, eps)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        """x (1, C, 1, T), own (1, P, 1, T) -> (1, C, 1, T)."""
        return self.norm(self.up(gelu_tanh(self.down(x)) * own))


class GatedBlock(DecoderBlock):
    """A layer whose attention shares keys and values; then a gate, if it has an input of its own;
    then a scale, one number a layer."""

    def __init__(self, *parts: nn.Module, gate: Gate | None = None, **norms: nn.Module):
        super().__init__(*parts, **norms)
        self.gate, self.scale = gate, nn.Parameter(torch.ones(1, 1, 1, 1))

    def forward(self, hidden, cos, sin, mask, *rest):
        """hidden (1,C,1,T), with a gate the layer's own input (1,P,1,T), and what the attention
        takes -> hidden, and what the attention returns beside y."""
        own, given = (rest[0], rest[1:]) if self.gate else (None, rest)
        y, *new = self.attention(self.before_attention(hidden), cos, sin, mask, *given)
        hidden = hidden + self.after_attention(y)
        y = self.feed_forward(self.before_feed_forward(hidden))
        hidden = hidden + self.after_feed_forward(y)
        if self.gate:
            hidden = hidden + self.gate(hidden, own)
        return hidden * self.scale, *new
