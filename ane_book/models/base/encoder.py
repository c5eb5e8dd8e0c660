"""A bidirectional encoder's layer in ANE form: channels first, every projection a 1x1 convolution.

Letters: C hidden size, F feed-forward size, H heads, D head size, T tokens of a call.

Reference: Apple, "Deploying Transformers on the Apple Neural Engine" (2022): Conv2d for Linear,
(B, C, 1, S).
"""

from functools import partial

from ane_book.models.base.layers import projection
import torch
from torch import Tensor, nn
import torch.nn.functional as F

__all__ = ["ACTIVATIONS", "EncoderBlock", "LayerNorm"]

#: By the names of config.json.
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class LayerNorm(nn.Module):
    """Layer norm over the channels of (1, C, 1, T)."""

    def __init__(self, channels: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Written out, since `F.layer_norm` takes trailing axes only; conversion makes it one op.
        centred = x - x.mean(dim=1, keepdim=True)
        variance = (centred * centred).mean(dim=1, keepdim=True)
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class EncoderBlock(nn.Module):
    """Attention, residual, norm, feed-forward, residual, norm; every token may see every other."""

    def __init__(self, C: int, F: int, heads: int, activation: str, eps: float):
        super().__init__()
        self.heads, self.activation = heads, ACTIVATIONS[activation]
        self.qkv = projection(C, 3 * C, bias=True)
        self.out = projection(C, C, bias=True)
        self.attention_norm = LayerNorm(C, eps)
        self.up = projection(C, F, bias=True)
        self.down = projection(F, C, bias=True)
        self.output_norm = LayerNorm(C, eps)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden (1, C, 1, T), mask (1, 1, T, T), added to the scores -> hidden."""
        hidden = self.attention_norm(hidden + self._attend(hidden, mask))
        return self.output_norm(hidden + self.down(self.activation(self.up(hidden))))

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        _, C, _, T = x.shape
        rows = self.qkv(x).view(1, 3 * self.heads, C // self.heads, T).transpose(2, 3)
        q, k, v = rows.chunk(3, dim=1)  # 3 x (1, H, T, D); the scale 1/sqrt(D) is in q's weights
        weights = F.softmax(q @ k.transpose(2, 3) + mask, dim=3)  # (1, H, T, T)
        return self.out((weights @ v).transpose(2, 3).reshape(1, C, 1, T))
