"""The head as packages: of a decoder the final norm, and logits or the winning token; of an encoder
what is of pooled columns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ane_book.conversion.quantize.encoded import Encoded
from ane_book.conversion.quantize.schemes import find_scheme
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter, StoredWeight
from ane_book.layout import CallShape
from ane_book.models import DecoderConfig, find
from ane_book.models.base.decoder import Winner
from ane_book.options import Recipe
import numpy as np
import torch
from torch import Tensor


def write_head(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    splits: dict[int, int],
    weights: Iterable[Mapping[str, Tensor | Encoded]],
) -> None:
    """Write a package of the head: logits of some parts of the vocabulary, or the winning token.

    splits: number and rows of each part that the package holds. weights: of a `Head` with one part,
    for each of them.
    """
    names = [f"logits_{i}" for i in splits]
    package, ends = PackageWriter(path), find(config.architecture).ends(config)
    scheme, stored = find_scheme(recipe.quant_head), dict[str, StoredWeight]()
    for part, state in zip(names, weights, strict=True):
        if not stored:  # the norm comes with every part
            stored = package.write_weights({"norm": state["norm.weight"]})
        stored |= package.write_weights({part: state["parts.0.weight"]}, scheme)
    for name, T in recipe.widths.items():
        function, shape = package.function(name), (1, config.hidden_size, 1, T)
        hidden = {"hidden": function.input("hidden", "fp16", shape)}
        piece = lower(ends["norm"], {"hidden": torch.zeros(shape)}, ["normed"], config.rms_norm_eps)
        weight = {"weight": stored["norm"]}
        (normed,) = function.stamp(piece, "norm", hidden, weight, {"normed": "normed"})
        bound = None if recipe.argmax_output else ends.get("bound")
        for part in names:
            free, logits = f"{part}_free" if bound else part, (1, stored[part].shape[0], 1, T)
            function.op(  # a 1x1 convolution, between bounds where there are any
                "conv", free, "fp16", [logits],
                x=normed, weight=function.weight(f"{free}_weight", stored[part]),
                strides=np.ones(2, np.int32), pad_type=np.str_("valid"),
                pad=np.zeros(4, np.int32), dilations=np.ones(2, np.int32), groups=np.int32(1),
            )  # fmt: skip
            if bound:
                piece = lower(bound, {"logits": torch.zeros(logits)}, ["capped"])
                function.stamp(piece, part, {"logits": free}, {}, {"capped": part})
        rows = tuple(splits.values())
        if not recipe.argmax_output:
            function.finish(names)
            continue
        examples = {n: torch.zeros(1, V, 1, T) for n, V in zip(names, rows, strict=True)}
        piece = lower(Winner(rows), examples, ["token"], output_dtype=np.int32)
        feeds = {name: name for name in names}
        function.finish(function.stamp(piece, "winner", feeds, {}, {"token": "token"}))
    what = "Final norm and vocabulary projection, made by ane-book"
    package.finish(recipe.default_function, what)


def write_pooled(
    path: Path, config: Any, functions: dict[str, CallShape], weights: dict[str, Tensor]
) -> None:
    """Write the package of what is of texts' pooled columns, with its weights."""
    architecture, package = find(config.architecture), PackageWriter(path)
    stored, module = package.write_weights(weights), architecture.ends(config)["pooled"]
    for name, call in functions.items():
        function, shape = package.function(name), (1, config.hidden_size, 1, call.tokens)
        hidden = {"hidden": function.input("hidden", "fp16", shape)}
        piece = lower(module, {"hidden": torch.zeros(shape)}, ["vector"], config.norm_epsilon)
        function.finish(function.stamp(piece, "pooled", hidden, stored, {"vector": "vector"}))
    package.finish(next(iter(functions)), "Of pooled columns, made by ane-book")
