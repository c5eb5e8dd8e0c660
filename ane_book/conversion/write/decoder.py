"""A decoder as packages: shards of layers, and the head.

Every shard has the functions `decode` (T = 1) and `prefill` (T > 1) over one weight file. The
layers only read the cache; what differs between the cache variants is the frame around them. With
kv="state" the frame reads the states once and writes the new rows of all layers back in one
`slice_update` a state; with kv="host" keys and values come in as inputs, and the new rows go out
for the host to append.

Letters are those of `ane_book.models.base.layers`; n is the number of layers in a shard.
"""

from collections.abc import Iterable
from pathlib import Path

from ane_book.conversion.quantize import find_scheme
from ane_book.conversion.write.program import FunctionWriter, PackageWriter, Piece, Stored, lower
from ane_book.models import DecoderConfig, find
from ane_book.models.base.decoder import Winner
from ane_book.options import Recipe
import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Pieces",
    "add_convolution",
    "for_all_heads",
    "lower_blocks",
    "write_head",
    "write_norm",
    "write_shard",
]

Pieces = dict[tuple[str, str], Piece]  # function and kind of block -> the lowered block


def lower_blocks(config: DecoderConfig, recipe: Recipe) -> Pieces:
    """One block of each kind, lowered for each function; every layer is stamped from them."""
    D, K, S = config.head_dim, config.num_kv_heads, recipe.context
    architecture, pieces = find(config.architecture), {}
    for name, T in recipe.functions.items():
        rows = config.group * T if T > 1 else 1  # one row of the mask serves all heads when T = 1
        for kind in dict.fromkeys(architecture.kinds(config)):
            cos, sin, mask = architecture.feeds(kind)
            inputs = {
                "hidden": torch.zeros(1, config.hidden_size, 1, T),
                cos: torch.zeros(1, 1, T, D),
                sin: torch.zeros(1, 1, T, D),
                mask: torch.zeros(1, 1, rows, S + T),
                "keys": torch.zeros(1, K, S, D),
                "values": torch.zeros(1, K, S, D),
            }
            outputs = ("hidden_out", "new_keys", "new_values")
            block = architecture.block(config, kind)
            pieces[name, kind] = lower(block, inputs, outputs, config.rms_norm_eps)
    return pieces


def write_shard(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    pieces: Pieces,
    layers: range,
    weights: Iterable[dict[str, Tensor]],
) -> None:
    """Write the package of some layers; `weights` yields the state dict of each, in order."""
    package = PackageWriter(path)
    scheme, architecture = find_scheme(recipe.quant), find(config.architecture)
    kinds = architecture.kinds(config)
    stored = [package.write_weights(state, scheme) for state in weights]
    for name, T in recipe.functions.items():
        function = package.function(name)
        frame = _open_frame(function, config, recipe, layers, T)
        hidden, new_keys, new_values = "hidden", [], []
        for i, layer in enumerate(layers):
            last = {"hidden_out": "hidden_out"} if i == len(layers) - 1 else {}
            feeds = {key: frame.get(key, key) for key in architecture.feeds(kinds[layer])} | {
                "hidden": hidden,
                "keys": frame["keys"][i],
                "values": frame["values"][i],
            }
            piece = pieces[name, kinds[layer]]
            hidden, k, v = function.stamp(piece, f"layer{layer}", feeds, stored[i], last)
            new_keys.append(k)
            new_values.append(v)
        _close_frame(function, config, recipe, frame, new_keys, new_values, T)
    package.finish("decode", f"Layers {layers.start} to {layers.stop - 1}, made by ane-book")


def _open_frame(
    function: FunctionWriter, config: DecoderConfig, recipe: Recipe, layers: range, T: int
) -> dict:
    """Inputs, states, and this call's views of them: masks for all heads, the cache by layer."""
    D, K, S, n = config.head_dim, config.num_kv_heads, recipe.context, len(layers)
    cache = (n, K, S, D)
    function.input("hidden", "fp16", (1, config.hidden_size, 1, T))
    masks = _add_feeds(function, config, recipe, layers, T)
    if recipe.kv == "state":
        function.input("position", "int32", (1,))
    for name in ("keys", "values"):
        if recipe.kv == "state":
            function.state(name, cache)
        else:
            function.input(name, "fp16", cache)
    frame = for_all_heads(function, masks, config.group, T, S)
    for name in ("keys", "values"):
        whole = name
        if recipe.kv == "state":
            (whole,) = function.op("read_state", f"{name}_now", "fp16", [cache], input=name)
        frame[f"{name}_now"] = whole
        frame[name] = [whole] if n == 1 else function.op(
            "split", f"{name}_of", "fp16", [(1, K, S, D)] * n,
            x=whole, axis=np.int32(0), num_splits=np.int32(n),
        )  # fmt: skip
    return frame


def _add_feeds(
    function: FunctionWriter, config: DecoderConfig, recipe: Recipe, layers: range, T: int
) -> list[str]:
    """The tables and masks that these layers take, as inputs; returns the names of the masks."""
    D, S, architecture = config.head_dim, recipe.context, find(config.architecture)
    kinds = architecture.kinds(config)
    feeds = [architecture.feeds(kinds[layer]) for layer in layers]
    for table in dict.fromkeys(name for cos, sin, _ in feeds for name in (cos, sin)):
        function.input(table, "fp16", (1, 1, T, D))
    masks = list(dict.fromkeys(mask for *_, mask in feeds))
    for mask in masks:
        function.input(mask, "fp16", (1, 1, T, S + T))
    return masks


def for_all_heads(
    function: FunctionWriter, masks: list[str], group: int, T: int, S: int
) -> dict[str, str]:
    """Masks with a row for each of the G heads' T tokens; one row serves all when T = 1."""
    if T == 1 or group == 1:
        return {}
    reps, shape = np.array([1, 1, group, 1], np.int32), (1, 1, group * T, S + T)
    return {
        mask: function.op("tile", f"{mask}_rows", "fp16", [shape], x=mask, reps=reps)[0]
        for mask in masks
    }


def _close_frame(
    function: FunctionWriter,
    config: DecoderConfig,
    recipe: Recipe,
    frame: dict,
    new_keys: list[str],
    new_values: list[str],
    T: int,
) -> None:
    """Gather the layers' new rows; write them to the states or hand them to the host."""
    n, K, S, D = len(new_keys), config.num_kv_heads, recipe.context, config.head_dim
    rows = {}
    for name, parts in (("keys", new_keys), ("values", new_values)):
        (rows[name],) = function.op(
            "concat", f"new_{name}", "fp16", [(n, K, T, D)],
            values=parts, axis=np.int32(0), interleave=np.bool_(False),
        )  # fmt: skip
    if recipe.kv == "host":
        function.finish(["hidden_out", rows["keys"], rows["values"]])
        return
    zero = function.constant("zero", np.zeros(1, np.int32))
    (begin,) = function.op(
        "concat", "begin", "int32", [(4,)],
        values=[zero, zero, "position", zero], axis=np.int32(0), interleave=np.bool_(False),
    )  # fmt: skip
    size = np.array([n, K, T, D], np.int32)
    (end,) = function.op("add", "end", "int32", [(4,)], x=begin, y=size)
    for name in ("keys", "values"):
        (updated,) = function.op(
            "slice_update", f"{name}_next", "fp16", [(n, K, S, D)],
            x=frame[f"{name}_now"], update=rows[name], begin=begin, end=end,
        )  # fmt: skip
        function.op("write_state", f"{name}_write", input=name, data=updated)
    function.finish(["hidden_out"])


def write_head(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    splits: dict[int, int],
    weights: dict[str, Tensor],
) -> None:
    """Write a package of the head: logits of some parts of the vocabulary, or the winning token.

    splits: number and rows of each part that the package holds. weights: of a `Head` with them.
    """
    names = [f"logits_{i}" for i in splits]
    package = PackageWriter(path)
    stored = package.write_weights(weights, find_scheme(recipe.quant_head))
    for name, T in recipe.functions.items():
        function = package.function(name)
        hidden = _add_norm(function, config, stored["norm.weight"], T)
        for i, part in enumerate(names):
            add_convolution(function, part, hidden, stored[f"parts.{i}.weight"], None, T)
        rows = tuple(splits.values())
        function.finish(_choose(function, names, rows, T) if recipe.argmax_output else names)
    package.finish("decode", "Final norm and vocabulary projection, made by ane-book")


def write_norm(path: Path, config: DecoderConfig, recipe: Recipe, weight: Tensor) -> None:
    """Write the package of the final norm by itself, which is the host's where each part of the
    head is a program: the functions `decode_0` and `prefill_0`."""
    package = PackageWriter(path)
    stored = package.write_weights({"weight": weight})
    for name, T in recipe.functions.items():
        function = package.function(f"{name}_0")
        function.finish([_add_norm(function, config, stored["weight"], T, "hidden_out")])
    package.finish("decode_0", "Final norm, made by ane-book")


def _add_norm(
    function: FunctionWriter, config: DecoderConfig, weight: Stored, T: int, out: str = "normed"
) -> str:
    """Add the input `hidden` and `out`, the final norm of it; returns its name."""
    shape = 1, config.hidden_size, 1, T
    hidden = {"hidden": function.input("hidden", "fp16", shape)}
    norm = find(config.architecture).final_norm(config)
    piece = lower(norm, {"hidden": torch.zeros(shape)}, ["normed"], config.rms_norm_eps)
    (normed,) = function.stamp(piece, "norm", hidden, {"weight": weight}, {"normed": out})
    return normed


def add_convolution(
    function: FunctionWriter, out: str, hidden: str, weight: Stored, bias: Stored | None, T: int
) -> None:
    """Add `out` (1, outputs, 1, T), a 1x1 convolution of `hidden` (1, inputs, 1, T)."""
    more = {"bias": function.weight(f"{out}_bias", bias)} if bias else {}
    function.op(
        "conv", out, "fp16", [(1, weight.shape[0], 1, T)], x=hidden,
        weight=function.weight(f"{out}_weight", weight), **more,
        strides=np.ones(2, np.int32), pad_type=np.str_("valid"),
        pad=np.zeros(4, np.int32), dilations=np.ones(2, np.int32), groups=np.int32(1),
    )  # fmt: skip


def _choose(function: FunctionWriter, names: list[str], splits: tuple[int, ...], T: int) -> list:
    """Add the choice of the largest logit; returns the output's name."""
    examples = {n: torch.zeros(1, rows, 1, T) for n, rows in zip(names, splits, strict=True)}
    piece = lower(Winner(splits), examples, ["token"], output_dtype=np.int32)
    return function.stamp(piece, "winner", {n: n for n in names}, {}, {"token": "token"})
