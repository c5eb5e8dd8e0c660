"""The layers of a decoder as packages; `write.head` has what follows them.

Every shard has the functions `decode` (T = 1), `prefill` (T > 1) and, where asked for, `verify`
(T = K) over one weight file, once for each tier: a number of slots that the cache has. The layers
only read the cache; what differs between the cache variants is the frame around them. With
kv="state" the frame reads the states once and writes the new rows of all layers back; with
kv="host" keys and values come in as inputs, and the new rows go out for the host to append. Tails
are kept by the host in both cases: more than two states are reported to fail (claim `state-count`),
and a host that has all columns can go back to any token. The memory of layers that have no cache is
a state, or an input and an output, as the cache is. For the sake of the same limit, keys and values
are one state `cache` beside it, keys first.

Letters are those of `ane_book.models.base.layers`; n is the number of layers in a shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ane_book.conversion.quantize import Encoded, find_scheme
from ane_book.conversion.write.activations import silu_by_tanh
from ane_book.conversion.write.experts import Pieces
from ane_book.conversion.write.lowering import LoweredBlock, lower
from ane_book.conversion.write.program import FunctionWriter, PackageWriter, StoredWeight
from ane_book.conversion.write.states import write_states
from ane_book.errors import InvalidInput
from ane_book.layout import MEMORY, PER_LAYER
from ane_book.models import DecoderConfig, find
from ane_book.models.base.architecture import SHARED
from ane_book.models.base.lora import slot_shapes
from ane_book.options import Recipe
import numpy as np
import torch
from torch import Tensor

STATES = 2  # the most of a package: more are reported to fail (claim `state-count`)


@dataclass(frozen=True)
class Frame:
    """The names in a function of the values around its layers, by the names that blocks use.

    values: what the first layer takes, with masks for all heads. cache: the states as read in this
    call. kept: what each layer keeps from call to call, and its part of an adapter's slots, by the
    layer's number.
    """

    values: dict[str, str]
    cache: dict[str, str] = field(default_factory=dict)
    kept: dict[int, dict[str, str]] = field(default_factory=dict)


def lower_blocks(config: DecoderConfig, recipe: Recipe) -> dict[str, Pieces]:
    """Lower one block of each kind, and the module before the first, for each function."""
    architecture, pieces = find(config.architecture), {}
    kinds = architecture.kinds(config)
    for name, (T, tier) in recipe.tiered.items():
        pieces[name] = lowered = Pieces(form=recipe.form)
        shapes = _kept(config, tier)
        hidden = {"hidden": torch.zeros(1, config.hidden_size, 1, T)}
        own = {PER_LAYER: torch.zeros(1, P, 1, T)} if (P := architecture.per_layer(config)) else {}
        carried = {n: torch.zeros(1, R, 1, T) for n, R in architecture.carried(config).items()}
        if (first := architecture.first(config)) is not None:
            lowered.ends["first"] = lower(first, hidden, ["hidden_out"])
        for kind in dict.fromkeys(kinds):
            feeds, kept = architecture.host_inputs(kind), architecture.kept(config, kind)
            often = {name: _repeated(config, recipe, name, T) for name in feeds}
            inputs = hidden | {
                **{n: torch.zeros(_host_shape(config, tier, n, T, often[n])) for n in feeds},
                **own,
                **{n: torch.zeros((1, *shapes[n])) for n in kept},
                **{n: torch.zeros((1, *shapes[n])) for n in architecture.borrowed(config, kind)},
                **{n: carried[n] for n in architecture.takes(config, kind)},
            }
            given = [n for n in architecture.gives(config, kind) if not _is_new(recipe, n)]
            outputs = ["hidden_out", *(f"new_{n}" for n in kept), *(f"{n}_out" for n in given)]
            slots = {n: torch.zeros((1, *shape)) for n, shape in _slots(config, recipe).items()}
            lowered.add(config, kind, inputs, outputs, config.rms_norm_eps, slots)
    if recipe.silu == "native":
        return pieces
    changed = {name: lowered.mapped(silu_by_tanh) for name, lowered in pieces.items()}
    if changed == pieces:
        raise InvalidInput(f"silu tanh: the layers of {config.architecture} models have no silu")
    return changed


def _repeated(config: DecoderConfig, recipe: Recipe, mask: str, T: int) -> int:
    """How often a layer's mask has each token's row: by rows once for every head of a group, unless
    one row serves all heads, when T = 1."""
    several = recipe.form == "rows" and T > 1
    return find(config.architecture).group(config, mask) if several else 1


def _is_new(recipe: Recipe, name: str) -> bool:
    """Whether a carried value is a cache's new rows as they are, of which a block returns one."""
    return recipe.form == "apple" and name.startswith(SHARED)


def _host_shape(
    config: DecoderConfig, recipe: Recipe, name: str, T: int, often: int = 1
) -> tuple[int, ...]:
    """The shape of what the host computes for a call, with each row of a mask so often."""
    if name == "real":
        return 1, 1, 1, T
    host = find(config.architecture).host(config)
    if name in host.masks:
        return recipe.layout.input(often * T, recipe.context + T)
    return recipe.layout.input(T, host.rotary[name.rpartition("_")[0]].head_dim)


def _kept(
    config: DecoderConfig, recipe: Recipe, T: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Shapes of what layers keep from call to call: cache (by rows (K, S, D)), tails (channels, 1,
    W), memory (H, Dv, Dk). T: of what a call of so many tokens returns for each."""
    architecture, S = find(config.architecture), T or recipe.context
    sizes = architecture.caches(config).items()
    caches = {name: recipe.layout.cache(1, K, S, D)[1:] for name, (K, D) in sizes}
    tails = {n: (rows, 1, T or W) for n, (rows, W) in architecture.tails(config).items()}
    return caches | tails | {MEMORY: architecture.memory(config) or ()}


def _stores(config: DecoderConfig, recipe: Recipe, layers: range) -> dict[str, list]:
    """The states, inputs and outputs in which these layers keep something, by name: the layer and
    the block's name of each part, in order."""
    holders = find(config.architecture).holders(config, layers)
    stores = {name: [(layer, name) for layer in own] for name, own in holders.items()}
    if sum(_is_state(config, recipe, name) for name in stores) <= STATES:
        return stores
    joined = {
        name.replace("keys", "cache"): stores.pop(name) + stores.pop(name.replace("keys", "values"))
        for name in [own for own in stores if own.startswith("keys")]
    }
    return joined | stores


def _slots(config: DecoderConfig, recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's inputs for an adapter, without an axis of layers; {} for none."""
    return slot_shapes(config, recipe.lora_slots) if recipe.lora_slots else {}


def write_shard(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    pieces: dict[str, Pieces],
    layers: range,
    weights: Iterable[Mapping[str, Tensor | Encoded]],
    first: dict[str, Tensor] | None = None,
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order.

    first: the state dict of the module before the first layer, if the shard has one.
    """
    package, scheme = PackageWriter(path), find_scheme(recipe.quant)
    before = package.write_weights(first or {})
    stored = [package.write_weights(state, scheme) for state in weights]
    for name, (T, tier) in recipe.tiered.items():
        function = package.function(name)
        frame = open_frame(function, config, tier, layers, T)
        if before:
            piece, feeds = pieces[name].ends["first"], {"hidden": "hidden"}
            (frame.values["hidden"],) = function.stamp(piece, "first", feeds, before)
        new = _stamp_layers(function, config, pieces[name].blocks, layers, frame, stored)
        close_frame(function, config, tier, layers, frame, new, T)
    what = f"Layers {layers.start} to {layers.stop - 1}, made by ane-book"
    package.finish(recipe.default_function, what)


def _stamp_layers(
    function: FunctionWriter,
    config: DecoderConfig,
    pieces: dict[str, LoweredBlock],
    layers: range,
    frame: Frame,
    stored: list[dict[str, StoredWeight]],
) -> list[dict[str, str]]:
    """Stamp the layers in order; returns each one's results: block's name -> function's name."""
    architecture, given, new = find(config.architecture), dict(frame.values), []
    kinds, carried = architecture.kinds(config), architecture.carried(config)
    leaving = {"hidden_out": "hidden_out"} | handed(config, layers.stop, "{}_out")
    for i, layer in enumerate(layers):
        feeds = {key: given.get(key, key) for key in architecture.host_inputs(kinds[layer])}
        feeds |= {name: given[name] for name in ("hidden", *carried) if name in given}
        feeds |= frame.kept[layer]
        piece, names = pieces[kinds[layer]], leaving if layer == layers[-1] else {}
        results = function.stamp(piece, f"layer{layer}", feeds, stored[i], names)
        made = dict(zip(piece.outputs, results, strict=True))
        for name in architecture.gives(config, kinds[layer]):
            made.setdefault(f"{name}_out", made.get(f"new_{name.removeprefix(SHARED)}", ""))
        new.append(made)
        given |= {n: new[-1][f"{n}_out"] for n in ("hidden", *carried) if f"{n}_out" in new[-1]}
    T = pieces[kinds[layers[-1]]].inputs["hidden"][3]
    for name, own in handed(config, layers.stop).items():
        if given[name] != own:  # of an earlier layer than the last, or of a package before
            function.op("identity", own, "fp16", [(1, carried[name], 1, T)], x=given[name])
    return new


def handed(config: DecoderConfig, layer: int, name: str = "{}") -> dict[str, str]:
    """Map a block's names of the values handed to a layer to the packages' names for them.

    For example `router` -> `router_7`; {} at the model's two ends. name: how the block's names are
    written, such as "{}_out".
    """
    values = find(config.architecture).handed(config, layer)
    return {name.format(value): f"{value}_{layer}" for value in values}


def open_frame(
    function: FunctionWriter,
    config: DecoderConfig,
    recipe: Recipe,
    layers: range,
    T: int,
    hidden: str | None = None,
) -> Frame:
    """Add the function's inputs and states, and read what its layers take of them.

    hidden: the name of the hidden state, if it is not an input.
    """
    carried, stores = find(config.architecture).carried(config), _stores(config, recipe, layers)
    hidden = hidden or function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
    frame = Frame({"hidden": hidden}, kept={layer: {} for layer in layers})
    masks = _add_feeds(function, config, recipe, layers, T)
    for own, name in handed(config, layers.start).items():
        frame.values[own] = function.input(name, "fp16", (1, carried[own], 1, T))
    states = [name for name in stores if _is_state(config, recipe, name)]
    if {*states} - {MEMORY}:
        function.input("position", "int32", (1,))
    of_layer = _kept(config, recipe)
    shapes = {name: (len(held), *of_layer[held[0][1]]) for name, held in stores.items()}
    for name, shape in shapes.items():
        if name in states:
            function.state(name, shape)
        else:
            function.input(name, "fp16", shape)
    for mask in masks:
        if (often := _repeated(config, recipe, mask, T)) > 1:
            reps = np.array([1, 1, often, 1], np.int32)
            rows = (1, 1, often * T, recipe.context + T)
            tiled = function.op("tile", f"{mask}_rows", "fp16", [rows], x=mask, reps=reps)
            frame.values[mask] = tiled[0]
    for name, (n, *one) in shapes.items():
        whole = name
        if name in states:
            (whole,) = function.op("read_state", f"{name}_now", "fp16", [(n, *one)], input=name)
            frame.cache[name] = whole
        parts = _apart(function, whole, name, n, one)
        for (layer, own), part in zip(stores[name], parts, strict=True):
            frame.kept[layer][own] = part
    _lend(config, layers, frame)
    for name, shape in (_own(config, T) | _slots(config, recipe)).items():
        whole = function.input(name, "fp16", (len(layers), *shape))
        parts = _apart(function, whole, name, len(layers), shape)
        for layer, part in zip(layers, parts, strict=True):
            frame.kept[layer][name] = part
    return frame


def _own(config: DecoderConfig, T: int) -> dict[str, tuple[int, ...]]:
    """The shape of what the host gives to each layer of its own; {} for most models."""
    P = find(config.architecture).per_layer(config)
    return {PER_LAYER: (P, 1, T)} if P else {}


def _lend(config: DecoderConfig, layers: range, frame: Frame) -> None:
    """Give layers that borrow caches those of the last layer before them that keeps them."""
    architecture, last = find(config.architecture), dict[str, str]()
    for layer in layers:
        borrowed = architecture.borrowed(config, architecture.kinds(config)[layer])
        frame.kept[layer] = {name: last[name] for name in borrowed if name in last} | (
            frame.kept[layer]
        )
        last |= frame.kept[layer]


def _apart(
    function: FunctionWriter, whole: str, name: str, n: int, shape: Sequence[int]
) -> list[str]:
    """Split what n layers have, (n, ...), into that of each, (1, ...)."""
    return [whole] if n == 1 else function.op(
        "split", f"{name}_of", "fp16", [(1, *shape)] * n,
        x=whole, axis=np.int32(0), num_splits=np.int32(n),
    )  # fmt: skip


def _is_state(config: DecoderConfig, recipe: Recipe, name: str) -> bool:
    """Whether a store of this name is a Core ML state: not a tail, and nothing that hosts keep."""
    return recipe.kv == "state" and name not in find(config.architecture).tails(config)


def _add_feeds(
    function: FunctionWriter, config: DecoderConfig, recipe: Recipe, layers: range, T: int
) -> list[str]:
    """Add the tables and masks of these layers as inputs; returns the names of the masks."""
    architecture = find(config.architecture)
    kinds, known = architecture.kinds(config), architecture.host(config).masks
    names = [name for layer in layers for name in architecture.host_inputs(kinds[layer])]
    masks = [name for name in dict.fromkeys(names) if name in known]
    for name in (*(n for n in dict.fromkeys(names) if n not in known), *masks):
        function.input(name, "fp16", _host_shape(config, recipe, name, T))
    return masks


def close_frame(
    function: FunctionWriter,
    config: DecoderConfig,
    recipe: Recipe,
    layers: range,
    frame: Frame,
    new: list[dict[str, str]],
    T: int,
    results: Sequence[str] = ("hidden_out",),
) -> None:
    """Join the layers' new rows; write them to the states, or return them to the host.

    results: what else leaves the package.
    """
    made, rows, shapes = dict(zip(layers, new, strict=True)), {}, _kept(config, recipe, T)
    caches: dict[str, tuple[int, ...]] = {}  # shapes of the new rows of states
    for name, held in _stores(config, recipe, layers).items():
        shape = (len(held), *shapes[held[0][1]])
        (rows[name],) = function.op(
            "concat", f"new_{name}", "fp16", [shape],
            values=[
                made[layer].get(f"new_{own}") or _copied(function, recipe, frame, own, shape)
                for layer, own in held
            ],
            axis=np.int32(0), interleave=np.bool_(False),
        )  # fmt: skip
        if name in frame.cache and name != MEMORY:
            caches[name] = shape
    if caches:
        states = {name: frame.cache[name] for name in caches}
        write_states(function, recipe, states, rows, caches)
    if MEMORY in frame.cache:
        function.op("write_state", f"{MEMORY}_write", input=MEMORY, data=rows[MEMORY])
    given = [own for name, own in rows.items() if name not in frame.cache]
    function.finish([*results, *given, *handed(config, layers.stop).values()])


def _copied(
    function: FunctionWriter, recipe: Recipe, frame: Frame, name: str, shape: tuple[int, ...]
) -> str:
    """The new rows of a cache that layers of another package keep, as this one's copy has them.

    shape: of new rows in all layers here.
    """
    shared = frame.values[f"{SHARED}{name}"]  # (1, K * D, 1, T)
    if recipe.form == "apple":
        return shared
    _, K, T, D = shape
    (columns,) = function.op(
        "reshape", f"{shared}_heads", "fp16", [(1, K, D, T)],
        x=shared, shape=np.array([1, K, D, T], np.int32),
    )  # fmt: skip
    return function.op(
        "transpose", f"{shared}_rows", "fp16", [(1, K, T, D)],
        x=columns, perm=np.array([0, 1, 3, 2], np.int32),
    )[0]  # fmt: skip
