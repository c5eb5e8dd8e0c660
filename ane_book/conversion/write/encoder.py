"""An encoder as packages: shards of layers, with the modules before and after all layers.

Every shard has a function for each length of a call, over one weight file: static shapes are what
the Neural Engine takes, and a few of them keep padding low.

Letters are those of `ane_book.models.base.encoder`.
"""

from collections.abc import Iterable
from pathlib import Path

from ane_book.conversion.quantize import find_scheme
from ane_book.conversion.write.experts import Pieces
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import FunctionWriter, PackageWriter
from ane_book.conversion.write.trunk import Parts, store_parts
from ane_book.models import find
from ane_book.models.base.architecture import FULL
from ane_book.models.bert import BertConfig
from ane_book.models.privacy_filter import PrivacyFilterConfig
import torch
from torch import Tensor

__all__ = ["lower_encoder", "write_encoder", "write_encoder_trunk"]

Config = BertConfig | PrivacyFilterConfig


def lower_encoder(config: Config, functions: dict[str, int]) -> dict[str, Pieces]:
    """Lower one block, and the modules before and after all, for each function: name -> T."""
    architecture, eps, pieces = find(config.architecture), config.norm_epsilon, {}
    ends = {"first": (architecture.first, "first"), "last": (architecture.last, "logits")}
    for name, T in functions.items():
        hidden = {"hidden": torch.zeros(1, config.hidden_size, 1, T)}
        inputs = hidden | {n: torch.zeros(shape) for n, shape in _feeds(config, T).items()}
        pieces[name] = Pieces()
        pieces[name].add(config, FULL, inputs, ["hidden_out"], eps)
        for end, (make, output) in ends.items():
            if (module := make(config)) is not None:
                pieces[name].ends[end] = lower(module, hidden, [output], eps)
    return pieces


def _feeds(config: Config, T: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a block's inputs beside the hidden state, in the order of its arguments."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rotary in find(config.architecture).host(config).rotary.items():
        shapes |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    return shapes | {"mask": (1, 1, T, T)}


def write_encoder(
    path: Path,
    config: Config,
    functions: dict[str, int],
    quant: str,
    pieces: dict[str, Pieces],
    layers: range,
    ends: dict[str, dict[str, Tensor]],
    weights: Iterable[dict[str, Tensor]],
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order.

    ends: the state dicts of the modules before ("first") and after ("last") all layers, for the
    package that has them.
    """
    package, scheme = PackageWriter(path), find_scheme(quant)
    before = package.write_weights(ends.get("first", {}))
    stored = [package.write_weights(state, scheme) for state in weights]
    after = package.write_weights(ends.get("last", {}))
    for name, T in functions.items():
        function, piece = package.function(name), pieces[name]
        hidden = function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
        shapes = _feeds(config, T)
        feeds = {feed: function.input(feed, "fp16", shape) for feed, shape in shapes.items()}
        if before:
            (hidden,) = function.stamp(piece.ends["first"], "first", {"hidden": hidden}, before)
        for layer, state in zip(layers, stored, strict=True):
            out = {"hidden_out": "hidden_out"} if layer == layers[-1] and not after else {}
            block_feeds = feeds | {"hidden": hidden}
            (hidden,) = function.stamp(piece.blocks[FULL], f"layer{layer}", block_feeds, state, out)
        if after:
            out = {"logits": "logits"}
            (hidden,) = function.stamp(piece.ends["last"], "last", {"hidden": hidden}, after, out)
        function.finish([hidden])
    text = f"Layers {layers.start} to {layers.stop - 1}, made by ane-book"
    package.finish(next(iter(functions)), text)


def write_encoder_trunk(
    path: Path,
    config: Config,
    functions: dict[str, int],
    quant: str,
    pieces: dict[str, Pieces],
    layer: int,
    states: tuple[dict[str, Tensor], dict[str, Tensor]],
    ends: dict[str, dict[str, Tensor]],
) -> None:
    """Write a trunk: the end of `layer` - 1, after its experts, and `layer` up to its experts.

    states: the state dicts of the two layers, {} where there is none. ends: as `write_encoder`
    takes them.
    """
    package, piece = PackageWriter(path), next(iter(pieces.values()))
    parts = store_parts(package, config, quant, piece, layer, states=states, ends=ends)
    for name, T in functions.items():
        function = package.function(name)
        if layer == 0:
            function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
        _stamp_trunk(function, pieces[name], layer, parts, layer == config.num_layers)
    package.finish(next(iter(functions)), f"Trunk {layer}, made by ane-book")


def _stamp_trunk(
    function: FunctionWriter,
    pieces: Pieces,
    layer: int,
    parts: Parts,
    last: bool,
) -> None:
    """Add one function of a trunk; `parts` are the stored weights of its parts."""
    block, hidden, ends = pieces.parted[FULL], "hidden", pieces.ends
    if layer > 0:
        out = "hidden_out" if last and not parts["last"] else None
        hidden = block.stamp_behind(function, layer - 1, parts["behind"], out)
    if parts["first"]:
        (hidden,) = function.stamp(ends["first"], "first", {"hidden": hidden}, parts["first"])
    own, results = {"hidden": hidden}, [hidden]
    if not last:
        results = [*block.stamp_before(function, layer, own, parts["before"]).values()]
    elif parts["last"]:
        names = {"logits": "logits"}
        results = function.stamp(ends["last"], "last", own, parts["last"], names)
    function.finish(results)
