"""A model's trunks: each is the end of a layer, after its experts, and the start of the next.

The trunk with a layer's attention also has what it keeps, and the values that layers hand on. With
the modules before and after all layers there are L + 1 of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ane_book.conversion.quantize import find_scheme
from ane_book.conversion.write.decoder import Stored, stamp_last
from ane_book.conversion.write.experts import Pieces, trunk_weights
from ane_book.conversion.write.frame import Frame
from ane_book.conversion.write.program import FunctionWriter, PackageWriter
from ane_book.models import find
from ane_book.options import Recipe
from torch import Tensor


def write_trunk(
    path: Path,
    config: Any,
    recipe: Recipe,
    pieces: dict[str, Pieces],
    layer: int,
    states: tuple[dict[str, Tensor], dict[str, Tensor]],
    ends: Mapping[str, dict[str, Tensor]],
) -> None:
    """Write a trunk: the end of `layer` - 1, after its experts, and `layer` up to its experts.

    states: the state dicts of the two layers, {} where there is none. ends: those of the modules
    before the "first" layer and after the "last", where the trunk has them.
    """
    package, parted = PackageWriter(path), next(iter(pieces.values())).parted
    scheme, kinds = find_scheme(recipe.quant), find(config.architecture).kinds(config)
    parts = {"first": package.write_weights(ends.get("first", {}))}
    for part, i, state in (("behind", layer - 1, states[0]), ("before", layer, states[1])):
        if 0 <= i < len(kinds):
            piece = getattr(parted[kinds[i]], part)
            parts[part] = package.write_weights(trunk_weights(piece, state), scheme)
    parts["last"] = package.write_weights(ends.get("last", {}))
    for name, lowered in pieces.items():
        _stamp(package.function(name), config, recipe, lowered, layer, parts)
    package.finish(next(iter(pieces)), f"Trunk {layer}, made by ane-book")


def _stamp(
    function: FunctionWriter,
    config: Any,
    recipe: Recipe,
    pieces: Pieces,
    layer: int,
    parts: dict[str, Stored],
) -> None:
    """Add one function of a trunk; parts: the stored weights of its parts."""
    kinds, hidden = find(config.architecture).kinds(config), None
    last = layer == len(kinds)
    if layer > 0:
        out = "hidden_out" if last and not parts["last"] else None
        block = pieces.parted[kinds[layer - 1]]
        hidden = block.stamp_behind(function, layer - 1, parts["behind"], out)
    if last:
        assert hidden is not None, "a model has layers"
        function.finish([stamp_last(function, pieces, hidden, parts["last"])])
        return
    frame = Frame(function, config, recipe, pieces.call, range(layer, layer + 1), hidden)
    if parts["first"]:
        frame.stamp_first(pieces, parts["first"])
    block = pieces.parted[kinds[layer]]
    feeds, names = frame.feeds(layer, block.before), frame.leaving
    made = block.stamp_before(function, layer, feeds, parts["before"], names)
    frame.accept(layer, made)
    # In a decoder in one order; in an encoder in that of the operations.
    order = ("x", "gates", *block.held) if frame.signatures.kept else [*made]
    frame.close([made[name] for name in order])
