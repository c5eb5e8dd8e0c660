"""A decoder's trunks: each is the end of a layer, after its experts, and the start of the next.

The trunk with a layer's attention also has its cache and tails, and the values that layers hand on.
"""

from pathlib import Path
from typing import Any

from ane_book.conversion.quantize import find_scheme
from ane_book.conversion.write.decoder import close_frame, handed, open_frame
from ane_book.conversion.write.experts import Pieces, trunk_weights
from ane_book.conversion.write.program import FunctionWriter, PackageWriter, StoredWeight
from ane_book.models import DecoderConfig, find
from ane_book.options import Recipe
from torch import Tensor

Parts = dict[str, dict[str, StoredWeight]]  # by part: "first", "behind", "before", "last"


def store_parts(
    package: PackageWriter,
    config: Any,
    quant: str,
    pieces: Pieces,
    layer: int,
    states: tuple[dict[str, Tensor], dict[str, Tensor]],
    ends: dict[str, dict[str, Tensor]],
) -> Parts:
    """Write the weights of the trunk before the experts of a layer.

    states: the state dicts of the layer before and of this one, {} where there is none. ends: those
    of the modules before ("first") and after ("last") all layers, where the trunk has them.
    """
    scheme, kinds = find_scheme(quant), find(config.architecture).kinds(config)
    parts = {"first": package.write_weights(ends.get("first", {}))}
    for part, i, state in (("behind", layer - 1, states[0]), ("before", layer, states[1])):
        if 0 <= i < len(kinds):
            piece = getattr(pieces.parted[kinds[i]], part)
            parts[part] = package.write_weights(trunk_weights(piece, state), scheme)
    return parts | {"last": package.write_weights(ends.get("last", {}))}


def write_trunk(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    pieces: dict[str, Pieces],
    layer: int,
    first: dict[str, Tensor],
    states: tuple[dict[str, Tensor], dict[str, Tensor]],
) -> None:
    """Write a trunk: the end of `layer` - 1, after its experts, and `layer` up to its experts.

    states: the state dicts of the two layers, {} where there is none. first: that of the module
    before all layers, {} where there is none.
    """
    package, ends = PackageWriter(path), {"first": first}
    parts = store_parts(
        package, config, recipe.quant, next(iter(pieces.values())), layer, states=states, ends=ends
    )
    for name, (T, tier) in recipe.tiered.items():
        _stamp(package.function(name), config, tier, pieces[name], layer, parts, T)
    package.finish(recipe.default_function, f"Trunk {layer}, made by ane-book")


def _stamp(
    function: FunctionWriter,
    config: DecoderConfig,
    recipe: Recipe,
    pieces: Pieces,
    layer: int,
    parts: Parts,
    T: int,
) -> None:
    """Add one function of a trunk."""
    architecture, hidden, last = find(config.architecture), None, layer == config.num_layers
    kinds, carried = architecture.kinds(config), architecture.carried(config)
    if layer > 0:
        block, out = pieces.parted[kinds[layer - 1]], "hidden_out" if last else None
        hidden = block.stamp_behind(function, layer - 1, parts["behind"], out)
    if last:
        function.finish(["hidden_out"])
        return
    layers = range(layer, layer + 1)
    frame = open_frame(function, config, recipe, layers, T, hidden)
    if parts["first"]:
        own = {"hidden": frame.values["hidden"]}
        piece = pieces.ends["first"]
        (frame.values["hidden"],) = function.stamp(piece, "first", own, parts["first"])
    given = frame.values
    feeds = {key: given.get(key, key) for key in architecture.host_inputs(kinds[layer])}
    feeds |= {name: given[name] for name in ("hidden", *carried) if name in given}
    feeds |= frame.kept[layer]
    block, leaving = pieces.parted[kinds[layer]], handed(config, layers.stop, "{}_out")
    new = block.stamp_before(function, layer, feeds, parts["before"], leaving)
    results = [new[name] for name in ("x", "gates", *block.held)]
    close_frame(function, config, recipe, layers, frame, [new], T, results)
