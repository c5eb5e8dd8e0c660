"""Five networks whose ends hide what is wrong before them.

They end in a softmax, a sigmoid, an argmax, a norm and a mean. On random inputs the first two are
nearly constant, a norm takes any scale away, an argmax all but an order, and a mean any order.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """x (1, 3, 24, 24) -> (1, 10), a softmax."""

    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4), nn.BatchNorm2d(32)
        self.c3, self.se = nn.Conv2d(32, 24, 3, padding=1), nn.Conv2d(24, 24, 1)
        self.fc = nn.Linear(24, 10)
        self.act, self.tanh, self.corners, self.ceil = True, "none", False, False
        self.pool, self.gate, self.axis = F.max_pool2d, torch.sigmoid, -1

    def forward(self, x):
        x = self.b1(self.c1(x))
        x = torch.relu(x) if self.act else x
        x = F.hardswish(self.b2(self.c2(x)))
        x = F.gelu(4 * self.c3(x), approximate=self.tanh)
        x = x * self.gate(self.se(x.mean((2, 3), keepdim=True)))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=self.corners)
        x = self.pool(x, 3, 2, 0, ceil_mode=self.ceil)
        return torch.softmax(self.fc(x.mean((2, 3))), self.axis)


class Segmenter(nn.Module):
    """x (1, 3, 16, 12) -> (1, 4, 16, 12), a sigmoid of small numbers."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=2)
        self.group = nn.GroupNorm(3, 12)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 4, 1)
        self.slope, self.limit, self.skip_first, self.add = 0.1, 0.4, True, 2.0
        self.group.weight.data.uniform_(0.5, 1.5)

    def forward(self, x):
        skip = F.leaky_relu(self.norm(self.stem(x)), self.slope)
        y = self.down(skip).clamp(-self.limit, self.limit)
        y = y + self.add * self.group(F.silu(self.wide(y)))
        y = torch.tanh(self.up(y))
        pair = [skip, y] if self.skip_first else [y, skip]
        return torch.sigmoid(0.05 * self.head(torch.cat(pair, 1)))


class Tagger(nn.Module):
    """ids (1, 7) of 40 -> (1, 7), the argmax of five classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(40, 12), nn.Parameter(0.3 * torch.randn(7, 12))
        self.norm, self.after = nn.LayerNorm(12), nn.LayerNorm(12, eps=1e-3)
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)
        self.head = nn.Linear(12, 5)
        self.scale, self.axis, self.residual, self.act = 0.5, -1, 2.0, F.gelu
        self.flat = False

    def heads(self, x):
        return x.view(1, 3, 7, 4) if self.flat else x.view(1, 7, 3, 4).transpose(1, 2)

    def forward(self, ids):
        x = self.norm(self.embed(ids) + self.place)
        q, k, v = (self.heads(f(x)) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * self.scale
        y = (scores.softmax(self.axis) @ v).transpose(1, 2).reshape(1, 7, 12)
        x = self.after(x * self.residual + self.o(y))
        x = x + self.down(self.act(4 * self.up(x)))
        return self.head(x).argmax(-1)


class Embedder(nn.Module):
    """x (1, 8, 15) -> (1, 11, 8), a norm without weights."""

    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv1d(8, 12, 3, padding=1), nn.BatchNorm1d(12)
        self.depth = nn.Conv1d(12, 12, 5, groups=12)
        self.mix, self.last = nn.Linear(12, 12), nn.Linear(12, 8)
        self.lstm = nn.LSTM(12, 12, batch_first=True)
        self.factor, self.shift, self.power = 2.0, 0.25, 2
        self.act, self.order, self.eps = F.relu, (0, 2, 1), 1e-5

    def forward(self, x):
        y = self.act(self.bn(self.first(x)))
        y = self.depth(y).permute(*self.order).reshape(1, 11, 12)
        y = F.elu(self.mix(y)) + self.shift
        y = y + self.lstm(y)[0]
        y = y / (1 + y.abs() ** self.power)
        return F.layer_norm(self.factor * self.last(y), (8,), eps=self.eps)


class Pooler(nn.Module):
    """x (1, 20, 6) -> (1, 10), a mean over time."""

    def __init__(self):
        super().__init__()
        self.inside, self.gate = nn.Linear(6, 16), nn.Linear(6, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.rms = nn.Parameter(0.5 + torch.rand(8))
        self.out = nn.Linear(16, 10)
        self.pool, self.eps, self.ends, self.base = F.avg_pool1d, 1e-2, 2, 2.0
        self.act, self.size, self.sum, self.swap = F.softplus, 2, False, False

    def forward(self, x):
        y = self.act(self.inside(x)) * torch.sigmoid(self.gate(x))
        y = F.pad(y.transpose(1, 2), (self.ends, 4 - self.ends))
        y = self.pool(F.relu(self.conv(y)), self.size, 2).transpose(1, 2)[:, :11]
        z, _ = self.gru(y)
        z = z * torch.rsqrt((z * z).mean(-1, keepdim=True) + self.eps) * self.rms
        half = y[..., :8] * self.base
        y = self.out(torch.cat([half, z] if self.swap else [z, half], -1))
        return y.sum(1) if self.sum else y.mean(1)


def _reals(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal(shape).astype(np.float32))


#: By the op that they end in: the class, and its inputs by name.
QUIET: dict[str, tuple[type[nn.Module], dict[str, torch.Tensor]]] = {
    "softmax": (Classifier, {"x": _reals(1, 3, 24, 24)}),
    "sigmoid": (Segmenter, {"x": _reals(1, 3, 16, 12)}),
    "argmax": (Tagger, {"ids": (torch.arange(7)[None] * 5 + 2).int()}),
    "norm": (Embedder, {"x": _reals(1, 8, 15)}),
    "mean": (Pooler, {"x": _reals(1, 20, 6)}),
}
