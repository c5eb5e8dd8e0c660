"""The layers of bidirectional encoders, in ANE form like those in layers.py.

References: Apple, "Deploying Transformers on the Apple Neural Engine" (2022): Conv2d for Linear,
(B, C, 1, S). Attention sinks: Xiao et al. 2023 (arXiv 2309.17453).
"""

from collections.abc import Callable, Sequence
from functools import partial

from ane_book.models.base.layers import RMSNorm, rotate
from ane_book.models.base.projection import Projection
from ane_book.models.base.sentence import DenseLayer
import torch
from torch import Tensor, nn
import torch.nn.functional as F

#: Activations by their names in config.json.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "identity": nn.Identity(),
}


class LayerNorm(nn.Module):
    """Layer norm over the channels of (1, C, 1, T)."""

    def __init__(self, channels: int, eps: float, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Written out, since `F.layer_norm` takes trailing axes only; coremltools fuses it again.
        centred = x - x.mean(dim=1, keepdim=True)
        variance = (centred * centred).mean(dim=1, keepdim=True)
        normed = centred * torch.rsqrt(variance + self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


class EncoderBlock(nn.Module):
    """BERT's layer: attention, residual, norm, feed-forward, residual, norm; no causal mask."""

    def __init__(self, C: int, F: int, heads: int, activation: str, eps: float):
        super().__init__()
        self.heads, self.activation = heads, ACTIVATIONS[activation]
        self.qkv = Projection(C, 3 * C, bias=True)
        self.out = Projection(C, C, bias=True)
        self.attention_norm = LayerNorm(C, eps)
        self.up = Projection(C, F, bias=True)
        self.down = Projection(F, C, bias=True)
        self.output_norm = LayerNorm(C, eps)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden (1, C, 1, T), mask (1, 1, T, T) that is added to the scores -> hidden."""
        hidden = self.attention_norm(hidden + self._attend(hidden, mask))
        return self.output_norm(hidden + self.down(self.activation(self.up(hidden))))

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        _, C, _, T = x.shape
        rows = self.qkv(x).view(1, 3 * self.heads, C // self.heads, T).transpose(2, 3)
        q, k, v = rows.chunk(3, dim=1)  # 3 x (1, H, T, D); the scale 1/sqrt(D) is in q's weights
        weights = F.softmax(q @ k.transpose(2, 3) + mask, dim=3)  # (1, H, T, T)
        return self.out((weights @ v).transpose(2, 3).reshape(1, C, 1, T))


class SinkAttention(nn.Module):
    """Attention among the tokens of a call, with a learned sink for each head.

    A sink is one more score in the softmax, without a value: the weight that a head gives to its
    sink goes to no token, so a head can attend to nothing.
    """

    def __init__(self, C: int, heads: int, kv_heads: int, D: int, bias: bool):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, D
        self.qkv = Projection(C, (heads + 2 * kv_heads) * D, bias)
        self.sinks = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.out = Projection(heads * D, C, bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x (1, C, 1, T), tables (1, 1, T, D), mask (1, 1, T, T) -> (1, C, 1, T)."""
        H, K, D, T = self.heads, self.kv_heads, self.dim, x.shape[3]
        rows = self.qkv(x).view(1, H + 2 * K, D, T).transpose(2, 3)  # (1, H+2K, T, D)
        qk, v = rows.split([H + K, K], dim=1)
        q, k = rotate(qk, cos, sin, D).split([H, K], dim=1)
        # The G query heads of one key/value head become rows of one matrix: no copy of K or V.
        scores = q.reshape(1, K, H // K * T, D) @ k.transpose(2, 3)  # (1, K, G*T, T)
        scores = scores.view(1, H, T, T) + mask
        # Broadcast by adding zeros made of the mask: a broadcast of the constant alone would be
        # folded at conversion, and stored T times.
        sinks = mask[..., :1] * 0 + self.sinks  # (1, H, T, 1)
        weights = F.softmax(torch.cat([scores, sinks], dim=3), dim=3)
        weights = weights[..., :T].reshape(1, K, H // K * T, T)
        y = (weights @ v).view(1, H, T, D)
        return self.out(y.transpose(2, 3).reshape(1, H * D, 1, T))


class Labels(nn.Module):
    """Token classification head: norm, then a projection to one logit per label."""

    def __init__(self, C: int, labels: int, eps: float):
        super().__init__()
        self.norm = RMSNorm(C, eps)
        self.score = Projection(C, labels, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (1, C, 1, T) -> logits (1, labels, 1, T)."""
        return self.score(self.norm(hidden))


class DenseLayers(nn.Module):
    """The `Dense` layers of sentence-transformers, on pooled columns."""

    def __init__(self, layers: Sequence[DenseLayer]):
        super().__init__()
        self.layers = nn.ModuleList(Projection(d.inputs, d.outputs, d.bias) for d in layers)
        self.activations = [ACTIVATIONS[layer.activation] for layer in layers]

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (1, C, 1, T), a column a text -> (1, outputs, 1, T)."""
        for layer, activation in zip(self.layers, self.activations, strict=True):
            hidden = activation(layer(hidden))
        return hidden


class SparseBlock(nn.Module):
    """Norm, attention with sinks, residual; norm, a mixture of experts, residual."""

    def __init__(self, attention: SinkAttention, router: nn.Conv2d, gates, mixture, eps: float):
        super().__init__()
        C = router.in_channels
        self.attention_norm, self.attention = RMSNorm(C, eps), attention
        self.mixture_norm, self.router = RMSNorm(C, eps), router
        self.gates, self.mixture = gates, mixture

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """hidden (1, C, 1, T) -> hidden."""
        hidden = hidden + self.attention(self.attention_norm(hidden), cos, sin, mask)
        x = self.mixture_norm(hidden)
        return hidden + self.mixture(x, self.gates(self.router(x)))
