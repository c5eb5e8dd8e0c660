"""Faults to plant in each of the networks whose ends hide them (`_quiet.py`)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


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


def _listed(network: str, **faults) -> dict[str, Fault]:
    return {
        f"{network}: {name.replace('_', ' ')}": Fault(network, *fault)
        for name, fault in faults.items()
    }


FAULTS = {
    **_listed(
        "softmax",
        channel_scaled=(tensor("c2.weight", times(1.3, 5)), "c2"),
        norm_eps=(setting(b2__eps=0.1), "b2"),
        norm_mean=(tensor("b1.running_mean", shifted), "b1"),
        norm_variance=(tensor("b2.running_var", times(1.2)), "b2"),
        relu_dropped=(setting(act=False), "relu"),
        gelu_by_tanh=(setting(tanh="tanh"), "gelu"),
        corners=(setting(corners=True), "upsample_bilinear2d"),
        mean_pooling=(setting(pool=mean_pool), "max_pool2d"),
        ceil_mode=(setting(ceil=True), "max_pool2d"),
        tanh_gate=(setting(gate=torch.tanh), "sigmoid"),
        rows_moved=(tensor("c2.weight", moved), "c2"),
        sign=(tensor("se.weight", times(-1)), "se"),
        transposed=(tensor("c1.weight", lambda w: w.transpose(2, 3)), "c1"),
        bias_of_gate=(tensor("se.bias", times(0)), "se"),
    ),
    **_listed(
        "sigmoid",
        channel_scaled=(tensor("down.weight", times(1.3, 2)), "down"),
        layer_scaled=(tensor("head.weight", times(1.05)), "head"),
        slope=(setting(slope=0.01), "leaky_relu"),
        limits=(setting(limit=0.3), "clamp"),
        group_eps=(setting(group__eps=0.1), "group"),
        group_weight=(tensor("group.weight", times(1.1, 1)), "group"),
        groups_merged=(setting(group__num_groups=6), "group"),
        branch_dropped=(setting(add=0.0), "mul"),
        stride_and_padding=(setting(wide__dilation=(1, 1), wide__padding=(1, 1)), "wide"),
        order_of_concat=(setting(skip_first=False), "cat"),
        kernel_transposed=(tensor("up.weight", lambda w: w.transpose(2, 3)), "up"),
        bias_shifted=(tensor("head.bias", shifted), "mul"),
        inputs_moved=(tensor("stem.weight", lambda w: w.flip(1)), "stem"),
    ),
    **_listed(
        "argmax",
        channel_scaled=(tensor("up.weight", times(1.3, 2)), "up"),
        layer_scaled=(tensor("head.weight", times(1.05)), "head"),
        bias_shifted=(tensor("head.bias", shifted), "head"),
        second_norm_eps=(setting(after__eps=1e-1), "after"),
        norm_bias=(tensor("after.bias", shifted), "after"),
        places=(tensor("place", moved), "add"),
        row_of_table=(tensor("embed.weight", times(1.1, 12)), "embed"),
        silu_for_gelu=(setting(act=F.silu), "gelu"),
        activation_dropped=(setting(act=nothing), "gelu"),
        scale=(setting(scale=0.4), "mul"),
        axis_of_softmax=(setting(axis=-2), "softmax"),
        residual=(setting(residual=1.9), "mul"),
        heads_not_transposed=(setting(flat=True), "transpose"),
        four_bits=(tensor("v.weight", coarse), "v"),
    ),
    **_listed(
        "norm",
        last_scaled=(tensor("last.weight", times(1.05)), "last"),
        factor=(setting(factor=2.1), "mul"),
        last_shifted=(tensor("last.bias", shifted), "last"),
        first_sign=(tensor("first.weight", times(-1)), "first"),
        bn_mean=(tensor("bn.running_mean", shifted), "bn"),
        depth_reversed=(tensor("depth.weight", lambda w: w.flip(2)), "depth"),
        limited=(setting(act=clipped), "relu"),
        layout=(setting(order=(0, 1, 2)), "reshape"),
        shift=(setting(shift=0.2), "add"),
        gates=(tensor("lstm.weight_ih_l0", lambda w: w.roll(12, 0)), "lstm"),
        power=(setting(power=1), "pow"),
        eps=(setting(eps=1e-1), "layer_norm"),
    ),
    **_listed(
        "mean",
        channel_scaled=(tensor("inside.weight", times(1.3, 5)), "inside"),
        bias_dropped=(tensor("conv.bias", times(0)), "conv"),
        bias_shifted=(tensor("out.bias", shifted), "out"),
        gate_sign=(tensor("gate.weight", times(-1)), "gate"),
        relu_for_softplus=(setting(act=F.relu), "softplus"),
        padding=(setting(ends=1), "pad"),
        max_pooling=(setting(pool=max_pool1d), "avg_pool1d"),
        pool_of_one=(setting(size=1), "avg_pool1d"),
        sum_for_mean=(setting(sum=True), "mean"),
        order_of_concat=(setting(swap=True), "cat"),
        rms_eps=(setting(eps=1e-5), "add"),
        rms_weight=(tensor("rms", times(1.2, 1)), "mul"),
        gates=(tensor("gru.weight_hh_l0", lambda w: w.roll(8, 0)), "gru"),
        recurrent_bias=(tensor("gru.bias_hh_l0", times(0)), "gru"),
        kernel_reversed=(tensor("conv.weight", lambda w: w.flip(2)), "conv"),
        half_scaled=(setting(base=1.9), "mul"),
    ),
}  # fmt: skip
