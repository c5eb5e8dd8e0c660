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
from ane_book.models.base.config import DecoderConfig
from ane_book.models.bert import BertConfig
import torch
from torch import Tensor

Config = BertConfig | DecoderConfig


def lower_encoder(config: Config, functions: dict[str, int]) -> dict[str, Pieces]:
    """Lower one block of each kind, and the modules before and after all, for each function: name
    -> T."""
    architecture, eps, pieces = find(config.architecture), config.norm_epsilon, {}
    ends = {"first": (architecture.first, "first"), "last": (architecture.last, _result(config))}
    for name, T in functions.items():
        hidden, shapes = {"hidden": torch.zeros(1, config.hidden_size, 1, T)}, _feeds(config, T)
        pieces[name] = Pieces()
        for kind in dict.fromkeys(architecture.kinds(config)):
            feeds = {n: torch.zeros(shapes[n]) for n in architecture.host_inputs(kind)}
            pieces[name].add(config, kind, hidden | feeds, ["hidden_out"], eps)
        for end, (make, output) in ends.items():
            if (module := make(config)) is not None:
                pieces[name].ends[end] = lower(module, hidden, [output], eps)
    return pieces


def _result(config: Config) -> str:
    """The name of what the last package gives: the hidden state, or a tagger's logits."""
    return "logits" if find(config.architecture).task == "token-classification" else "hidden_out"


def _feeds(config: Config, T: int) -> dict[str, tuple[int, ...]]:
    """Shapes of blocks' inputs beside the hidden state."""
    shapes: dict[str, tuple[int, ...]] = {}
    host = find(config.architecture).host(config)
    for name, rotary in host.rotary.items():
        shapes |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    return shapes | dict.fromkeys(host.masks or ["mask"], (1, 1, T, T))


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
    architecture, result = find(config.architecture), _result(config)
    kinds = architecture.kinds(config)
    used = [name for i in layers for name in architecture.host_inputs(kinds[i])]
    before = package.write_weights(ends.get("first", {}))
    stored = [package.write_weights(state, scheme) for state in weights]
    after = package.write_weights(ends.get("last", {}))
    for name, T in functions.items():
        function, piece = package.function(name), pieces[name]
        hidden = function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
        shapes = {feed: shape for feed, shape in _feeds(config, T).items() if feed in used}
        feeds = {feed: function.input(feed, "fp16", shape) for feed, shape in shapes.items()}
        if before:
            (hidden,) = function.stamp(piece.ends["first"], "first", {"hidden": hidden}, before)
        for layer, state in zip(layers, stored, strict=True):
            out = {"hidden_out": "hidden_out"} if layer == layers[-1] and not after else {}
            own = {feed: feeds[feed] for feed in architecture.host_inputs(kinds[layer])}
            own |= {"hidden": hidden}
            block = piece.blocks[kinds[layer]]
            (hidden,) = function.stamp(block, f"layer{layer}", own, state, out)
        if after:
            out = {result: result}
            (hidden,) = function.stamp(piece.ends["last"], "last", {"hidden": hidden}, after, out)
        function.finish([hidden])
    text = f"Layers {layers.start} to {layers.stop - 1}, made by ane-book"
    package.finish(next(iter(functions)), text)


def write_pooled(
    path: Path, config: Config, functions: dict[str, int], weights: dict[str, Tensor]
) -> None:
    """Write the package of what is of texts' pooled columns; weights: of `Architecture.pooled`."""
    architecture, package = find(config.architecture), PackageWriter(path)
    stored = package.write_weights(weights)
    for called, T in functions.items():
        function, shape = package.function(called), (1, config.hidden_size, 1, T)
        hidden = {"hidden": function.input("hidden", "fp16", shape)}
        module = architecture.pooled(config)
        assert module is not None, "what a plan has such a program for"
        piece = lower(module, {"hidden": torch.zeros(shape)}, ["vector"], config.norm_epsilon)
        function.finish(function.stamp(piece, "pooled", hidden, stored, {"vector": "vector"}))
    package.finish(next(iter(functions)), "Of pooled columns, made by ane-book")


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
