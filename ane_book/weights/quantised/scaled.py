"""Weights of 8 bits times a scale: FP8 of DeepSeek, Mistral and ModelOpt; compressed-tensors.

    fp8                  X.weight (out, in) F8, X.weight_scale_inv: a number, or one for each block
                         of `weight_block_size`; despite its name it is multiplied by; for vLLM, and
                         for ModelOpt with `quant_algo` "FP8", it is called X.weight_scale
    compressed-tensors   X.weight F8 or I8, X.weight_scale by the `strategy` of a group in
                         `config_groups`: tensor, channel, group or block; X.weight_zero_point

Where a matrix does not divide by a block, the last blocks are smaller.

References: DeepSeek-V3, README_WEIGHTS.md; `transformers`, integrations/finegrained_fp8.py;
compressed-tensors, quantization/quant_args.py and quantization/lifecycle/forward.py.
"""

from collections.abc import Iterable
from math import ceil

from ane_book.weights.quantised.stored import FLOATS, FLOATS8, Shape, Stored, WeightRule
import torch

#: The formats of compressed-tensors that keep every value apart, and the one that packs them.
FORMATS = ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized")

#: The rows and columns that share a scale; None: all of them.
Block = tuple[int | None, int | None]


def fp8(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "fp8"."""
    size = settings.get("weight_block_size")
    blocks = [_block(stored, "weight_block_size", (None, None) if size is None else size)]
    found = {name: f"{name}_scale" for name in stored.of_type(FLOATS8)}
    return {
        name: _scaled(stored, name, scale if scale in stored.headers else f"{scale}_inv", blocks)
        for name, scale in found.items()
    }


def compressed(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of "compressed-tensors" for values that are not packed."""
    blocks = strategies(stored, settings)
    names = stored.of_type((*FLOATS8, "I8"), ".weight")
    return {name: _scaled(stored, name, f"{name}_scale", blocks) for name in names}


def strategies(stored: Stored, settings: dict) -> list[Block]:
    """The blocks that share a scale, as the groups of compressed-tensors declare them.

    Raises UnsupportedModel for a format that stores weights otherwise.
    """
    stored.only("format", settings.get("format"), (None, *FORMATS, "mixed-precision", "dense"))
    stored.only("transform_config", settings.get("transform_config") or None, (None,))  # rotations
    sparsity = settings.get("sparsity_config")
    kind = sparsity.get("format") if isinstance(sparsity, dict) else None
    stored.only("sparsity_config.format", kind, (None, "dense"))
    groups, found = settings.get("config_groups"), []
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            stored.only(f"config_groups.{name}.format", group.get("format"), (None, *FORMATS))
            size, field = weights.get("group_size"), f"config_groups.{name}.weights"
            kind = weights.get("strategy") or ("group" if size else "tensor")
            given = {
                "tensor": (None, None),
                "channel": (1, None),
                "group": (1, size),
                "block": weights.get("block_structure"),
            }
            stored.only(f"{field}.strategy", kind, tuple(given))
            found.append(_block(stored, field, given[kind]))
    return found


def _block(stored: Stored, field: str, size) -> Block:
    """A block's rows and columns out of a configuration."""
    sides = tuple(size) if isinstance(size, list | tuple) else ()
    if len(sides) != 2 or any(n is not None and (type(n) is not int or n <= 0) for n in sides):
        raise stored.error(f"quantization_config.{field}: {size!r:.60} is no block of a matrix")
    return sides


def _scaled(stored: Stored, name: str, scale: str, blocks: Iterable[Block]) -> WeightRule:
    """The rule of `name`, times `scale`, with one of the blocks: the first whose grid fits."""
    shape = stored.matrix(name, (*FLOATS8, "I8"))
    grids = {grid: block for block in reversed(list(blocks)) for grid in _grids(shape, block)}
    stored.part(scale, (*FLOATS, "F8_E8M0"), grids)
    given = stored.headers[scale].shape
    block, zero = grids[given], f"{name}_zero_point"
    zeros = (stored.part(zero, ("I8", *FLOATS8), [given]),) if zero in stored.headers else ()

    def make() -> torch.Tensor:
        wide = stored.read(name).float()
        if zeros:
            wide -= _spread(stored.read(zero), shape, block)
        return wide.mul_(_spread(stored.read(scale), shape, block))

    return WeightRule(shape, (name, scale, *zeros), make)


def _grids(shape: Shape, block: Block) -> list[Shape]:
    """The shapes that a scale of such blocks may have."""
    if block == (None, None):
        return [(), (1,), (1, 1)]
    rows, columns = (1 if side is None else ceil(n / side)
                     for n, side in zip(shape[-2:], block, strict=True))  # fmt: skip
    return [(*shape[:-2], rows, columns)]


def _spread(values: torch.Tensor, shape: Shape, block: Block) -> torch.Tensor:
    """Repeat each value over its block, and cut off what hangs over: (..., out, in), or a number
    or columns that broadcast to it."""
    wide = values.float()
    for axis, side in ((-2, block[0]), (-1, block[1])):
        if side is not None and side > 1:
            times = min(side, shape[axis])
            wide = wide.repeat_interleave(times, axis).narrow(axis, 0, shape[axis])
    return wide
