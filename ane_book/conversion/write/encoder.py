"""An encoder as packages: shards of layers, the first of which norms what the host has added up.

Every shard has a function for each length of a call, over one weight file: static shapes are what
the Neural Engine takes, and a few of them keep padding low.

Letters are those of `ane_book.models.base.encoder`.
"""

from collections.abc import Iterable
from pathlib import Path

from ane_book.conversion.quantize import find_scheme
from ane_book.conversion.write.program import PackageWriter, Piece, lower
from ane_book.models import find
from ane_book.models.bert import BertConfig
import torch
from torch import Tensor

__all__ = ["lower_encoder", "write_encoder"]

Pieces = dict[str, tuple[Piece, Piece]]  # function -> what is before the layers, and a layer


def lower_encoder(config: BertConfig, functions: dict[str, int]) -> Pieces:
    """One block, and what comes before the first, lowered for each function of so many tokens."""
    architecture, eps, pieces = find(config.architecture), config.layer_norm_eps, {}
    for name, T in functions.items():
        hidden, mask = torch.zeros(1, config.hidden_size, 1, T), torch.zeros(1, 1, T, T)
        first = lower(architecture.first(config), {"hidden": hidden}, ["first"], eps)
        inputs = {"hidden": hidden, "mask": mask}
        pieces[name] = first, lower(architecture.block(config), inputs, ["hidden_out"], eps)
    return pieces


def write_encoder(
    path: Path,
    config: BertConfig,
    functions: dict[str, int],
    quant: str,
    pieces: Pieces,
    layers: range,
    first: dict[str, Tensor],
    weights: Iterable[dict[str, Tensor]],
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order.

    first: the state dict of what comes before the first layer, in the package that has that.
    """
    package, scheme = PackageWriter(path), find_scheme(quant)
    before = package.write_weights(first)
    stored = [package.write_weights(state, scheme) for state in weights]
    for name, T in functions.items():
        function, (start, block) = package.function(name), pieces[name]
        hidden = function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
        mask = function.input("mask", "fp16", (1, 1, T, T))
        if before:
            (hidden,) = function.stamp(start, "first", {"hidden": hidden}, before)
        for layer, state in zip(layers, stored, strict=True):
            last = {"hidden_out": "hidden_out"} if layer == layers[-1] else {}
            feeds = {"hidden": hidden, "mask": mask}
            (hidden,) = function.stamp(block, f"layer{layer}", feeds, state, last)
        function.finish([hidden])
    text = f"Layers {layers.start} to {layers.stop - 1}, made by ane-book"
    package.finish(next(iter(functions)), text)
