"""The layers of a model as packages; `write.head` has what follows a decoder's.

Every shard of a decoder has the functions `decode` (T = 1), `prefill` (T > 1) and, where asked for,
`verify` (T = K) over one weight file, once for each tier: a number of slots that the cache has. The
layers only read the cache; what differs between the cache variants is the frame around them
(`write.frame`). With kv="state" it reads the states once and writes the new rows of all layers
back; with kv="host" keys and values come in as inputs, and the new rows go out for the host to
append. A shard of an encoder has a function for each length of a call, since static shapes are what
the Neural Engine takes, and a few of them keep padding low.

Letters are those of `ane_book.models.base`; n is the number of layers in a shard.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ane_book.conversion.quantize import Encoded, find_scheme
from ane_book.conversion.write.activations import silu_by_tanh
from ane_book.conversion.write.experts import Pieces
from ane_book.conversion.write.frame import Frame
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import FunctionWriter, PackageWriter, StoredWeight
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
        for kind, signature in signatures.kinds.items():
            lowered.add(config, kind, signature, slots)
    if recipe.silu == "native":
        return pieces
    changed = {name: lowered.mapped(silu_by_tanh) for name, lowered in pieces.items()}
    if changed == pieces:
        raise InvalidInput(f"silu tanh: the layers of {config.architecture} models have no silu")
    return changed


def write_shard(
    path: Path,
    config: Any,
    recipe: Recipe,
    pieces: dict[str, Pieces],
    layers: range,
    weights: Iterable[Mapping[str, Tensor | Encoded]],
    ends: Mapping[str, dict[str, Tensor]] | None = None,
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order.

    ends: the state dicts of the modules before the "first" layer and after the "last", for the
    package that has them.
    """
    package, scheme, ends = PackageWriter(path), find_scheme(recipe.quant), ends or {}
    before = package.write_weights(ends.get("first", {}))
    stored = [package.write_weights(state, scheme) for state in weights]
    after = package.write_weights(ends.get("last", {}))
    for name, lowered in pieces.items():
        frame = Frame(package.function(name), config, recipe, lowered.call, layers)
        _stamp(frame, lowered, before, stored, after)
    what = f"Layers {layers.start} to {layers.stop - 1}, made by ane-book"
    package.finish(next(iter(pieces)), what)


def _stamp(
    frame: Frame, lowered: Pieces, before: Stored, stored: list[Stored], after: Stored
) -> None:
    """Stamp the layers of a shard in order, and the ends that it has."""
    if before:
        frame.stamp_first(lowered, before)
    for layer, weights in zip(frame.layers, stored, strict=True):
        piece = lowered.blocks[frame.signatures.names[layer]]
        names = frame.leaving if layer == frame.layers[-1] and not after else {}
        feeds = frame.feeds(layer, piece)
        results = frame.function.stamp(piece, f"layer{layer}", feeds, weights, names)
        frame.accept(layer, dict(zip(piece.outputs, results, strict=True)))
    frame.close([stamp_last(frame.function, lowered, frame.values["hidden"], after)])


def stamp_last(function: FunctionWriter, pieces: Pieces, hidden: str, weights: Stored) -> str:
    """Stamp the module after all layers, if there are weights of one; returns what then leaves."""
    if not weights:
        return hidden
    piece = pieces.ends["last"]
    names = {result: result for result in piece.outputs}
    return function.stamp(piece, "last", {"hidden": hidden}, weights, names)[0]
