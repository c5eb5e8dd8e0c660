"""Five small networks with switches that conversions get wrong, and their sources and packages.

A fault is planted in a copy of the module, and the copy is converted: so the package has it and the
source has not. Sizes are odd, so that no axis passes for another.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
import warnings

import _foreign
import coremltools as ct
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Cnn(nn.Module):
    """Convolutions, pooling and upsampling. x (1, 3, 13, 13)."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 8, 3, stride=2)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.point = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)
        self.padding, self.limit = "reflect", 2.0
        self.ceil_mode, self.align_corners, self.mean = True, False, 0.25
        self.deviation = 0.5
        nn.init.uniform_(self.norm.running_var, 0.05, 0.2)
        nn.init.normal_(self.norm.running_mean, std=0.3)

    def forward(self, x):
        y = (x - self.mean) / self.deviation
        y = self.norm(self.stem(y)).clamp(-self.limit, self.limit)
        y = self.down(F.pad(y, (1, 1, 1, 1), mode=self.padding))  # (1, 8, 7, 7)
        y = F.silu(self.wide(y))
        y = F.max_pool2d(y, 2, ceil_mode=self.ceil_mode)
        y = F.interpolate(y, size=(9, 9), mode="bilinear", align_corners=self.align_corners)
        y = F.gelu(self.point(y))
        return self.head(y.mean((2, 3)))


class Detector(nn.Module):
    """Boxes and scores of a grid. x (1, 3, 12, 12) -> (N, 4) and (N, 3), N is 36."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.box, self.score = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 3, 1)
        self.register_buffer("grid", torch.rand(36, 2))
        self.register_buffer("anchors", 0.2 + torch.rand(1, 2))
        self.order, self.sign = (0, 2, 3, 1), 1.0
        self.classes = "sigmoid"

    def forward(self, x):
        y = F.leaky_relu(self.stem(x), 0.1)
        boxes = self.box(y).permute(0, 2, 3, 1).reshape(36, 4)
        centre = self.grid + self.sign * (torch.sigmoid(boxes[:, :2]) - 0.5)
        size = torch.exp(boxes[:, 2:]) * self.anchors
        scores = self.score(y).permute(*self.order).reshape(36, 3)
        made = torch.sigmoid(scores) if self.classes == "sigmoid" else scores.softmax(-1)
        return torch.cat([centre, size], 1), made


class Encoder(nn.Module):
    """A layer of a transformer. ids (1, 7) of 50, mask (1, 7) -> (1, 7, 12)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.norm, self.after = nn.LayerNorm(12, eps=1e-3), nn.LayerNorm(12)
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)
        self.masked, self.axis, self.approximate = -1e9, -1, "none"
        self.swap, self.flat = False, False
        self.embed.weight.data *= 0.05  # so that an epsilon counts
        self.norm.weight.data.uniform_(0.5, 1.5)

    def heads(self, x):
        """(1, 7, 12) -> (1, 3, 7, 4)."""
        if self.flat:
            return x.view(1, 3, 7, 4)
        return x.view(1, 7, 3, 4).transpose(1, 2)

    def forward(self, ids, mask):
        x = self.norm(self.embed(ids))
        q, k, v = (self.heads(f(x)) for f in (self.q, self.k, self.v))
        q, k = (k, q) if self.swap else (q, k)
        scores = q @ k.transpose(-1, -2) * 0.5
        scores = scores + (1 - mask[:, None, None].float()) * self.masked
        y = (scores.softmax(self.axis) @ v).transpose(1, 2).reshape(1, 7, 12)
        x = self.after(x + self.o(y))
        return x + self.down(F.gelu(3 * self.up(x), approximate=self.approximate))


class Recurrent(nn.Module):
    """Frames, an LSTM and probabilities. x (1, 9, 6) -> (1, 9, 5)."""

    def __init__(self):
        super().__init__()
        self.project, self.lstm = nn.Linear(6, 8), nn.LSTM(8, 8, batch_first=True)
        self.head, self.axis = nn.Linear(8, 5), -1
        self.backwards, self.gain = False, 3.0

    def forward(self, x):
        y = torch.tanh(self.project(x))
        y = y.flip(1) if self.backwards else y
        y, _ = self.lstm(y)
        return (self.head(y) * self.gain).softmax(self.axis)


class Decoder(nn.Module):
    """A decoder's layer with rotary embedding. x (1, 6, 16) -> (1, 6, 16)."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.rand(16) + 0.5) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(16, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, 16, bias=False)
        angles = torch.outer(torch.arange(6.0), 0.5 ** torch.arange(4.0)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((6, 6), -1e4).triu(1))
        self.eps, self.sign, self.scale = 1e-2, -1.0, 8**-0.5

    def norm(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * weight

    def turn(self, x):
        """(1, 2, 6, 8), rotated by each token's place."""
        turned = torch.cat([self.sign * x[..., 4:], x[..., :4]], -1)
        return x * self.cos + turned * self.sin

    def forward(self, x):
        y = self.norm(x, self.first)
        q, k, v = (f(y).view(1, 6, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) * self.scale + self.mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, 6, 16)
        x = x + self.o(y)
        y = self.norm(x, self.second)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _reals(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


#: By name: the class, its inputs by name.
NETWORKS: dict[str, tuple[type[nn.Module], dict[str, torch.Tensor]]] = {
    "cnn": (Cnn, {"x": _reals(1, 3, 13, 13)}),
    "detector": (Detector, {"x": _reals(1, 3, 12, 12)}),
    "encoder": (
        Encoder,
        {"ids": torch.arange(7)[None].int() * 7, "mask": (torch.arange(7)[None] < 5).int()},
    ),
    "recurrent": (Recurrent, {"x": _reals(1, 9, 6)}),
    "decoder": (Decoder, {"x": 0.1 * _reals(1, 6, 16)}),
}


def made(name: str) -> nn.Module:
    """A network with the weights of its seed."""
    torch.manual_seed(7)
    return NETWORKS[name][0]().eval()


def faulty(name: str, change: Callable[[nn.Module], None]) -> nn.Module:
    module = deepcopy(made(name))
    with torch.no_grad():
        change(module)
    return module


def export(module: nn.Module, inputs: dict[str, torch.Tensor], path: Path) -> str:
    """Write a module as a source, in the form that the path's ending says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".pt2":
            torch.export.save(torch.export.export(module, (), inputs), path)
        else:
            torch.onnx.export(module, tuple(inputs.values()), path, dynamo=False,
                              input_names=list(inputs), opset_version=17)  # fmt: skip
    return str(path)


def source_files(folder: Path, made: Callable, networks: dict) -> Callable[..., str]:
    """What gives the path of a network's source, by its name and ending, written when first asked
    for. networks: name -> class and inputs; made: a module of a name."""
    known: dict[Path, str] = {}

    def source(name: str, ending: str = ".pt2") -> str:
        path = folder / f"{name}{ending}"
        if path not in known:
            known[path] = export(made(name), networks[name][1], path)
        return known[path]

    return source


def package(module: nn.Module, inputs: dict[str, torch.Tensor], path: Path, half: bool, **image):
    """Convert a module. image: options of a `ct.ImageType` in place of the first input."""
    types = [
        ct.TensorType(name, x.shape, dtype=np.int32 if x.dtype == torch.int32 else np.float32)
        for name, x in inputs.items()
    ]
    if image:
        name, x = next(iter(inputs.items()))
        types[0] = ct.ImageType(name, x.shape, **image)
    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    how = {"minimum_deployment_target": ct.target.iOS17, "compute_precision": precision}
    return _foreign.package(module, path, tuple(inputs.values()), inputs=types, **how)
