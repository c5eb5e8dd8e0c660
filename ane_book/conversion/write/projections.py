"""A decoder as packages of one matrix each, and for every layer one of what the host does between.

All of it has the functions `decode` and `prefill`. A matrix is one 1x1 convolution over one weight.
The host's package of a layer has a function for each stretch of the block between its projections,
`decode_0`, `decode_1`, ...: the block that whole layers are stamped from, cut.
"""

from pathlib import Path

from ane_book.conversion.plan.shards import projections
from ane_book.conversion.quantize import Scheme
from ane_book.conversion.write.cut import cut_block, source
from ane_book.conversion.write.decoder import Pieces, add_convolution, for_all_heads
from ane_book.conversion.write.program import FunctionWriter, PackageWriter
from ane_book.models import DecoderConfig, find
from ane_book.options import Recipe
import numpy as np
from torch import Tensor

__all__ = ["cut_weights", "sources", "write_host", "write_projection"]

Matrix = dict[str, Tensor]  # "weight" (outputs, inputs, 1, 1) and, where there is one, "bias"


def cut_weights(
    config: DecoderConfig, state: dict[str, Tensor]
) -> tuple[dict[str, Matrix], dict[str, Tensor]]:
    """The state dict of a block as its matrices, by name, and what is left."""
    rest, matrices = dict(state), {name: {} for name in projections(config)}
    for projection, parts in find(config.architecture).matrices(config).items():
        rows = [outputs for outputs, _ in parts.values()]
        for kind in ("weight", "bias"):
            if (whole := rest.pop(f"{projection}.{kind}", None)) is not None:
                for name, part in zip(parts, whole.split(rows), strict=True):
                    matrices[name][kind] = part
    return matrices, rest


def sources(config: DecoderConfig) -> dict[str, str]:
    """What each matrix is multiplied with, by name."""
    projections = find(config.architecture).matrices(config).items()
    return {name: source(projection) for projection, parts in projections for name in parts}


def write_projection(
    path: Path, recipe: Recipe, matrix: Matrix, scheme: Scheme, hidden: str, out: str
) -> None:
    """Write the package of one matrix; `hidden` and `out` name what goes in and out."""
    package = PackageWriter(path)
    stored = package.write_weights(matrix, scheme)
    for name, T in recipe.functions.items():
        function = package.function(name)
        function.input(hidden, "fp16", (1, matrix["weight"].shape[1], 1, T))
        add_convolution(function, out, hidden, stored["weight"], stored.get("bias"), T)
        function.finish([out])
    package.finish("decode", f"One matrix, {path.stem.removeprefix('unfinished_')}, by ane-book")


def write_host(
    path: Path,
    config: DecoderConfig,
    recipe: Recipe,
    pieces: Pieces,
    layer: int,
    weights: dict[str, Tensor],
) -> None:
    """Write the package of what the host does in one layer; `weights` are all but the matrices."""
    architecture, package = find(config.architecture), PackageWriter(path)
    stored, matrices = package.write_weights(weights), architecture.matrices(config)
    kind = architecture.kinds(config)[layer]
    *_, mask = architecture.host_inputs(kind)
    for name, (T, tier) in recipe.tiered.items():
        cut = cut_block(pieces[name, kind], list(matrices))
        for i, stretch in enumerate(cut.stretches):
            function, feeds = package.function(f"{name}_{i}"), {}
            for value, shape in stretch.inputs.items():
                if projection := cut.results.get(value):
                    feeds[value] = _join(function, matrices[projection], T)
                elif value == mask:
                    feeds[value] = _mask(function, mask, config.group, T, tier.context)
                else:
                    feeds[value] = function.input(cut.names.get(value, value), "fp16", shape)
            outputs = {value: cut.names[value] for value in stretch.outputs}
            function.finish(function.stamp(stretch, "host", feeds, stored, outputs))
    package.finish("decode_0", f"What the host does in layer {layer}, made by ane-book")


def _join(function: FunctionWriter, matrices: dict[str, tuple[int, int]], T: int) -> str:
    """A projection's result (1, rows, 1, T), of the results of its matrices."""
    rows = {name: outputs for name, (outputs, _) in matrices.items()}
    parts = [function.input(name, "fp16", (1, outputs, 1, T)) for name, outputs in rows.items()]
    if len(parts) == 1:
        return parts[0]
    (joined,) = function.op(
        "concat", "_".join(parts), "fp16", [(1, sum(rows.values()), 1, T)],
        values=parts, axis=np.int32(1), interleave=np.bool_(False),
    )  # fmt: skip
    return joined


def _mask(function: FunctionWriter, mask: str, group: int, T: int, S: int) -> str:
    function.input(mask, "fp16", (1, 1, T, S + T))
    return for_all_heads(function, [mask], group, T, S).get(mask, mask)
