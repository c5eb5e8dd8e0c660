"""The layers of a model as packages; `write.head` has what follows a decoder's.

Every shard of a decoder has the functions `decode` (T = 1), `prefill` (T > 1) and, where asked for,
`verify` (T = K) over one weight file, once for each tier: a number of slots that the cache has. The
layers only read the cache; what differs between the cache variants is the frame around them
(`write.frame`). A shard of an encoder has a function for each length of a call, since static shapes
are what the Neural Engine takes, and a few of them keep padding low. Where experts are programs of
their own, trunks take the place of shards (`write.experts`).

Letters are those of `ane_book.models.base`; n is the number of layers in a shard.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ane_book.conversion.quantize.encoded import Encoded
from ane_book.conversion.quantize.schemes import find_scheme
from ane_book.conversion.write.activations import silu_by_tanh
from ane_book.conversion.write.experts import Pieces
from ane_book.conversion.write.frame import Frame
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter, StoredWeight
from ane_book.errors import InvalidInput
from ane_book.layout import CallShape
from ane_book.models import find
from ane_book.models.base.lora import slot_shapes
from ane_book.options import Recipe
import torch
from torch import Tensor

Stored = dict[str, StoredWeight]


def lower_blocks(
    config: Any, recipe: Recipe, calls: Mapping[str, CallShape] | None = None
) -> dict[str, Pieces]:
    """Lower one block of each kind, and the modules before and after all, for each function.

    calls: of an encoder; by default those of a decoder with this recipe.
    """
    architecture, pieces = find(config.architecture), dict[str, Pieces]()
    signatures = architecture.signatures(config)
    ends, tagger = architecture.ends(config), architecture.task == "token-classification"
    results = {
        "first": "hidden_out" if signatures.kept else "first",
        "last": "logits" if tagger else "hidden_out",
    }
    shapes = slot_shapes(config, recipe.lora_slots).items()
    slots = {name: torch.zeros(1, *shape) for name, shape in shapes}
    for name, call in (calls or recipe.calls).items():
        pieces[name] = lowered = Pieces(call)
        hidden = {"hidden": torch.zeros(1, config.hidden_size, 1, call.tokens)}
        for end in (end for end in results if end in ends):
            lowered.ends[end] = lower(ends[end], hidden, [results[end]], config.norm_epsilon)
        for kind in signatures.kinds:
            lowered.add(config, kind, slots)
    if recipe.silu == "tanh":
        counts = [silu_by_tanh(block) for lowered in pieces.values() for block in lowered.layers]
        if not any(counts):
            what = f"the layers of {config.architecture} models have no silu"
            raise InvalidInput(f"silu tanh: {what}")
    return pieces


def write_shard(
    path: Path,
    config: Any,
    recipe: Recipe,
    pieces: dict[str, Pieces],
    layers: range,
    weights: Iterable[Mapping[str, Tensor | Encoded]],
    ends: Mapping[str, dict[str, Tensor]] | None = None,
    behind: dict[str, Tensor] | None = None,
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order.

    ends: the state dicts of the modules before the "first" layer and after the "last", for the
    package that has them. Where layers are cut at their experts, a package is a trunk: the end of
    the layer before, and one layer up to its experts, or none after the last; behind: the
    parameters of that end, for all trunks but the first.
    """
    package, scheme, ends = PackageWriter(path), find_scheme(recipe.quant), ends or {}
    first = package.write_weights(ends.get("first", {}))
    end = None if behind is None else package.write_weights(behind, scheme)
    stored = [package.write_weights(state, scheme) for state in weights]
    last = package.write_weights(ends.get("last", {}))
    kinds = find(config.architecture).kinds(config)
    for name, lowered in pieces.items():
        function, hidden = package.function(name), None
        if end is not None:  # of the layer before, behind its experts; it takes inputs alone
            parted = lowered.parted[kinds[layers.start - 1]]
            piece, names = parted.behind, parted.names(layers.start - 1)
            feeds = {
                value: function.input(names.get(value, value), "fp16", shape)
                for value, shape in piece.inputs.items()
            }
            out = {} if layers or last else {piece.outputs[0]: "hidden_out"}
            (hidden, *_) = function.stamp(piece, "behind", feeds, end, out)
        frame = Frame(function, config, recipe, lowered.call, layers, hidden)
        _stamp(frame, lowered, first, stored, last)
    is_trunk = bool(next(iter(pieces.values())).parted)
    whole = f"Layers {layers.start} to {layers.stop - 1}"
    what = f"Trunk {layers.start}" if is_trunk else whole
    package.finish(next(iter(pieces)), f"{what}, made by ane-book")


def _stamp(
    frame: Frame, lowered: Pieces, first: Stored, stored: list[Stored], last: Stored
) -> None:
    """Stamp the layers of a package in order, and the ends that it has."""
    function, values, leaving = frame.function, frame.values, list[str]()
    if first:
        feeds = {"hidden": values["hidden"]}
        (values["hidden"],) = function.stamp(lowered.ends["first"], "first", feeds, first)
    for layer, weights in zip(frame.layers, stored, strict=True):
        kind = frame.signatures.names[layer]
        names = frame.leaving if layer == frame.layers[-1] and not last else {}
        if parted := lowered.parted.get(kind):
            piece, prefix = parted.before, "before"
            names |= {"x": "x", "gates": "gates"} | parted.names(layer)
        else:
            piece, prefix = lowered.blocks[kind], f"layer{layer}"
        made = function.stamp(piece, prefix, frame.feeds(layer, piece), weights, names)
        results = dict(zip(piece.outputs, made, strict=True))
        if parted:  # of a decoder in one order, of an encoder in that of the operations
            order = ("x", "gates", *parted.held) if frame.signatures.kept else [*results]
            leaving = [results[name] for name in order]
        frame.accept(layer, results)
    if last:
        piece, feeds = lowered.ends["last"], {"hidden": values["hidden"]}
        leaving = function.stamp(piece, "last", feeds, last, {n: n for n in piece.outputs})
    frame.close(leaving or [values["hidden"]])
