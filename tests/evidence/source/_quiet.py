"""Five networks whose ends hide what is wrong before them, and twenty faults to plant in each.

They end in a softmax, a sigmoid, an argmax, a norm and a mean. On random inputs the first two are
nearly constant, a norm takes any scale away, an argmax all but an order, and a mean any order.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["FAULTS", "QUIET", "Fault"]


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


class Fault(NamedTuple):
    """network: by its end. change: what is wrong in the package. names: what has to be named."""

    network: str
    change: Callable[[nn.Module], None]
    names: str


def setting(**values) -> Callable[[nn.Module], None]:
    """Other attributes, of a module inside by its name before two underscores."""

    def change(module: nn.Module) -> None:
        for name, value in values.items():
            *inside, last = name.split("__")
            setattr(module.get_submodule(".".join(inside)), last, value)

    return change


def tensor(name: str, made: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    """A weight or a buffer replaced by what is made of it."""

    def change(module: nn.Module) -> None:
        place, _, last = name.rpartition(".")
        held = getattr(module.get_submodule(place), last)
        held.copy_(made(held.clone()))

    return change


def times(factor: float, *rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """All, or these rows, times a factor."""

    def made(weight: torch.Tensor) -> torch.Tensor:
        weight[list(rows) or slice(None)] *= factor
        return weight

    return made


def coarse(weight: torch.Tensor) -> torch.Tensor:
    """To four bits."""
    step = weight.abs().max() / 7
    return (weight / step).round() * step


def moved(weight: torch.Tensor) -> torch.Tensor:
    """The rows, each one place further."""
    return weight.roll(1, 0)


def shifted(bias: torch.Tensor) -> torch.Tensor:
    """All by the same number, which a softmax and a norm take away."""
    return bias + 0.1


def mean_pool(x, *args, **options):
    return F.avg_pool2d(x, *args, **options)


def max_pool1d(x, size, stride):
    return F.max_pool1d(x, size, stride)


def clipped(x):
    return x.clamp(0, 0.5)


def nothing(x):
    return x


def tanh_gelu(x):
    return F.gelu(x, approximate="tanh")


def _listed(network: str, **faults) -> dict[str, Fault]:
    return {
        f"{network}: {name.replace('_', ' ')}": Fault(network, *fault)
        for name, fault in faults.items()
    }


FAULTS = {
    **_listed(
        "softmax",
        channel_scaled=(tensor("c2.weight", times(1.3, 5)), "c2"),
        layer_scaled=(tensor("c3.weight", times(1.05)), "c3"),
        norm_eps=(setting(b2__eps=0.1), "b2"),
        norm_mean=(tensor("b1.running_mean", shifted), "b1"),
        norm_variance=(tensor("b2.running_var", times(1.2)), "b2"),
        norm_weight=(tensor("b1.weight", times(0.9, 3, 4)), "b1"),
        relu_dropped=(setting(act=False), "relu"),
        gelu_by_tanh=(setting(tanh="tanh"), "gelu"),
        corners=(setting(corners=True), "upsample"),
        mean_pooling=(setting(pool=mean_pool), "max_pool"),
        ceil_mode=(setting(ceil=True), "max_pool"),
        tanh_gate=(setting(gate=torch.tanh), "sigmoid"),
        bias_dropped=(tensor("c3.bias", times(0)), "c3"),
        bias_shifted=(tensor("fc.bias", shifted), "fc"),
        rows_moved=(tensor("c2.weight", moved), "c2"),
        sign=(tensor("se.weight", times(-1)), "se"),
        transposed=(tensor("c1.weight", lambda w: w.transpose(2, 3)), "c1"),
        inputs_moved=(tensor("c1.weight", lambda w: w.flip(1)), "c1"),
        four_bits=(tensor("fc.weight", coarse), "fc"),
        bias_of_gate=(tensor("se.bias", times(0)), "se"),
    ),
    **_listed(
        "sigmoid",
        channel_scaled=(tensor("down.weight", times(1.3, 2)), "down"),
        layer_scaled=(tensor("head.weight", times(1.05)), "head"),
        norm_eps=(setting(norm__eps=0.1), "norm"),
        norm_mean=(tensor("norm.running_mean", shifted), "norm"),
        slope=(setting(slope=0.01), "leaky_relu"),
        limits=(setting(limit=0.3), "clamp"),
        group_eps=(setting(group__eps=0.1), "group"),
        group_weight=(tensor("group.weight", times(1.1, 1)), "group"),
        groups_merged=(setting(group__num_groups=6), "group"),
        branch_dropped=(setting(add=0.0), "mul"),
        branch_scaled=(setting(add=1.9), "mul"),
        stride_and_padding=(setting(wide__dilation=(1, 1), wide__padding=(1, 1)), "wide"),
        order_of_concat=(setting(skip_first=False), "cat"),
        kernel_transposed=(tensor("up.weight", lambda w: w.transpose(2, 3)), "up"),
        rows_moved=(tensor("wide.weight", moved), "wide"),
        sign=(tensor("up.weight", times(-1)), "up"),
        bias_dropped=(tensor("down.bias", times(0)), "down"),
        bias_shifted=(tensor("head.bias", shifted), "mul"),
        four_bits=(tensor("wide.weight", coarse), "wide"),
        inputs_moved=(tensor("stem.weight", lambda w: w.flip(1)), "stem"),
    ),
    **_listed(
        "argmax",
        channel_scaled=(tensor("up.weight", times(1.3, 2)), "up"),
        layer_scaled=(tensor("head.weight", times(1.05)), "head"),
        bias_shifted=(tensor("head.bias", shifted), "head"),
        bias_dropped=(tensor("down.bias", times(0)), "down"),
        norm_eps=(setting(norm__eps=0.1), "norm"),
        second_norm_eps=(setting(after__eps=1e-1), "after"),
        norm_weight=(tensor("norm.weight", times(0.9, 1)), "norm"),
        norm_bias=(tensor("after.bias", shifted), "after"),
        places=(tensor("place", moved), "add"),
        row_of_table=(tensor("embed.weight", times(1.1, 12)), "embed"),
        gelu_by_tanh=(setting(act=tanh_gelu), "gelu"),
        silu_for_gelu=(setting(act=F.silu), "gelu"),
        activation_dropped=(setting(act=nothing), "gelu"),
        scale=(setting(scale=0.4), "mul"),
        axis_of_softmax=(setting(axis=-2), "softmax"),
        residual=(setting(residual=1.9), "mul"),
        heads_not_transposed=(setting(flat=True), "transpose"),
        transposed=(tensor("k.weight", lambda w: w.T), "k"),
        sign=(tensor("o.weight", times(-1)), "o"),
        four_bits=(tensor("v.weight", coarse), "v"),
    ),
    **_listed(
        "norm",
        last_scaled=(tensor("last.weight", times(1.05)), "last"),
        factor=(setting(factor=2.1), "mul"),
        last_shifted=(tensor("last.bias", shifted), "last"),
        last_bias_dropped=(tensor("last.bias", times(0)), "last"),
        channel_scaled=(tensor("first.weight", times(1.3, 5)), "first"),
        first_sign=(tensor("first.weight", times(-1)), "first"),
        bn_mean=(tensor("bn.running_mean", shifted), "bn"),
        bn_eps=(setting(bn__eps=0.1), "bn"),
        bn_weight=(tensor("bn.weight", times(0.9, 2)), "bn"),
        depth_reversed=(tensor("depth.weight", lambda w: w.flip(2)), "depth"),
        rows_moved=(tensor("depth.weight", moved), "depth"),
        limited=(setting(act=clipped), "relu"),
        relu_dropped=(setting(act=nothing), "relu"),
        layout=(setting(order=(0, 1, 2)), "reshape"),
        shift=(setting(shift=0.2), "add"),
        transposed=(tensor("mix.weight", lambda w: w.T), "mix"),
        four_bits=(tensor("mix.weight", coarse), "mix"),
        gates=(tensor("lstm.weight_ih_l0", lambda w: w.roll(12, 0)), "lstm"),
        power=(setting(power=1), "pow"),
        eps=(setting(eps=1e-1), "layer_norm"),
    ),
    **_listed(
        "mean",
        channel_scaled=(tensor("inside.weight", times(1.3, 5)), "inside"),
        layer_scaled=(tensor("conv.weight", times(1.05)), "conv"),
        bias_dropped=(tensor("conv.bias", times(0)), "conv"),
        bias_shifted=(tensor("out.bias", shifted), "out"),
        gate_sign=(tensor("gate.weight", times(-1)), "gate"),
        gate_bias=(tensor("gate.bias", shifted), "gate"),
        relu_for_softplus=(setting(act=F.relu), "softplus"),
        padding=(setting(ends=1), "pad"),
        max_pooling=(setting(pool=max_pool1d), "avg_pool"),
        pool_of_one=(setting(size=1), "avg_pool"),
        sum_for_mean=(setting(sum=True), "mean"),
        order_of_concat=(setting(swap=True), "cat"),
        rms_eps=(setting(eps=1e-5), "add"),
        rms_weight=(tensor("rms", times(1.2, 1)), "mul"),
        gates=(tensor("gru.weight_hh_l0", lambda w: w.roll(8, 0)), "gru"),
        recurrent_bias=(tensor("gru.bias_hh_l0", times(0)), "gru"),
        kernel_reversed=(tensor("conv.weight", lambda w: w.flip(2)), "conv"),
        transposed=(tensor("conv.weight", lambda w: w.transpose(0, 1)), "conv"),
        four_bits=(tensor("out.weight", coarse), "out"),
        half_scaled=(setting(base=1.9), "mul"),
    ),
}  # fmt: skip
