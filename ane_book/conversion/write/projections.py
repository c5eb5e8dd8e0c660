"""A decoder as packages of one matrix each, and what is left for the host.

Every package has the functions `decode` and `prefill` over one weight: hidden (1, inputs, 1, T) in,
one 1x1 convolution, out (1, outputs, 1, T). Nothing is traced: a convolution is written as it is.
"""

from collections.abc import Callable
from pathlib import Path

from ane_book.conversion.plan.shards import projections
from ane_book.conversion.quantize import Scheme
from ane_book.conversion.write.program import FunctionWriter, PackageWriter, Stored
from ane_book.models import DecoderConfig, find
from ane_book.options import Recipe
import numpy as np
from torch import Tensor

__all__ = ["add_convolution", "cut_layer", "host_weights", "write_projection"]

Matrix = dict[str, Tensor]  # "weight" (outputs, inputs, 1, 1) and, where there is one, "bias"


def cut_layer(config: DecoderConfig, state: dict[str, Tensor]) -> dict[str, Matrix]:
    """The state dict of a `Block` as its seven matrices, by name."""
    rows = {name: outputs for name, (outputs, _) in projections(config).items()}
    fused = {
        "attention.qkv": ("q", "k", "v"),
        "attention.out": ("o",),
        "feed_forward.gate_up": ("gate", "up"),
        "feed_forward.down": ("down",),
    }
    matrices: dict[str, Matrix] = {name: {} for name in rows}
    for module, names in fused.items():
        for kind in ("weight", "bias"):
            if (whole := state.get(f"{module}.{kind}")) is None:
                continue
            parts = whole.split([rows[name] for name in names])
            for name, part in zip(names, parts, strict=True):
                matrices[name][kind] = part
    return matrices


def host_weights(config: DecoderConfig, read: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """What the host multiplies with, fp16: `layers` (L, 2, C), the norms before attention and
    feed-forward; `final` (C,); and `qk` (L, 2, D), those of queries and keys, where there are any.

    read(name) gives a tensor under its `transformers` name.
    """

    architecture = find(config.architecture)
    parts, prefix = architecture.parameters(config), architecture.layer_prefix

    def rows(*names: str) -> np.ndarray:
        tensors = [part for name in names for part in parts[name]]
        layers = range(config.num_layers)
        stack = [[read(f"{prefix}.{i}.{part.name}") for part in tensors] for i in layers]
        return np.array(stack, np.float16)

    weights = {
        "layers": rows("before_attention.weight", "before_feed_forward.weight"),
        "final": read(architecture.outer(config)["norm"].name).astype(np.float16),
    }
    if "attention.prepare.weight" in parts:
        weights["qk"] = rows("attention.prepare.weight")
    return weights


def write_projection(path: Path, recipe: Recipe, matrix: Matrix, scheme: Scheme, out: str) -> None:
    """Write the package of one matrix; `out` names its result."""
    package = PackageWriter(path)
    stored = package.write_weights(matrix, scheme)
    for name, T in recipe.functions.items():
        function = package.function(name)
        function.input("hidden", "fp16", (1, matrix["weight"].shape[1], 1, T))
        add_convolution(function, out, "hidden", stored["weight"], stored.get("bias"), T)
        function.finish([out])
    package.finish("decode", f"One matrix, {path.stem.removeprefix('unfinished_')}, by ane-book")


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
