"""Integers of 4 and 8 bits, packed into int32: AWQ, GPTQ and compressed-tensors.

A word holds 32 / bits integers, the first in its low bits. n = 32 / bits; G groups of inputs:

    awq    X.qweight (in, out / n) and X.qzeros (G, out / n), the outputs of a word in the order
           0 2 4 6 1 3 5 7; X.scales (G, out)
    gptq   X.qweight (in / n, out); X.qzeros (G, out / n), which hold the zero point less 1 (not in
           the format "gptq_v2"); X.scales (G, out); X.g_idx (in), the group of each input
    compressed-tensors, "pack-quantized"
           X.weight_packed (out, in / n), signed integers plus 2^(bits - 1); X.weight_shape (2,);
           X.weight_scale (out, G); X.weight_zero_point (out / n, G), plus 2^(bits - 1) as well;
           X.weight_g_idx (in,)

Each integer stands for scale * (integer - zero point).

References: AutoAWQ, utils/packing_utils.py; AutoGPTQ, pull request 640 (gptq_v2); vllm, pull
request 38966 (files in gptq_v2 that do not say so); compressed-tensors, pack_quantized.py.
"""

from math import ceil

from ane_book.weights.quantised.scaled import Block, compressed, strategies
from ane_book.weights.quantised.stored import FLOATS, INDICES, Shape, Stored, WeightRule
import torch

#: Where in an AWQ word outputs 0 to 7 stand.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def awq(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "awq", version "gemm"."""
    version = str(settings.get("version", settings.get("checkpoint_format", "gemm"))).lower()
    stored.only("version", version, ("gemm",))
    stored.only("bits", settings.get("bits"), (4,))
    stems = stored.stems(".qweight")
    return {f"{stem}.weight": _grouped(stored, stem, settings, awq=True) for stem in stems}


def gptq(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "gptq", formats "gptq" and "gptq_v2"."""
    kind = "marlin" if settings.get("is_marlin_format") else settings.get("checkpoint_format")
    stored.only("checkpoint_format", kind, (None, "", "gptq", "gptq_v2"))
    stored.only("bits", settings.get("bits"), (4, 8))
    dynamic = settings.get("dynamic")
    keys = [str(key) for key in dynamic] if isinstance(dynamic, dict) else []
    own = [key for key in keys if not key.startswith("-:")]  # "-:" leaves modules as they are
    stored.only("dynamic", own[0] if own else None, (None,))
    stems = stored.stems(".qweight")
    return {f"{stem}.weight": _grouped(stored, stem, settings, awq=False) for stem in stems}


def _grouped(stored: Stored, stem: str, settings: dict, awq: bool) -> WeightRule:
    data, zeros, scales, order = (
        f"{stem}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")
    )
    bits = int(settings["bits"])
    n, places = 32 // bits, AWQ_PLACES if awq else None
    rows, columns = stored.matrix(data, ("I32",))
    inputs, outputs = (rows, columns * n) if awq else (rows * n, columns)
    size = settings.get("group_size")
    if type(size) is not int or size < -1 or size == 0:
        raise stored.error(f"quantization_config.group_size is {size!r:.40}, not a size")
    size = inputs if size == -1 else size
    groups = ceil(inputs / size)
    stored.part(scales, FLOATS, [(groups, outputs)])
    stored.part(zeros, ("I32",), [(groups, ceil(outputs / n))])
    orders = (stored.part(order, INDICES, [(inputs,)]),) if order in stored.headers else ()

    def make() -> torch.Tensor:
        zero = _unpack(stored.read(zeros), bits, 1, places)[:, :outputs]
        # Symmetric zero points can be but 2^(bits - 1), so files that hold just that have them as
        # they are, even if they call themselves "gptq".
        symmetric = settings.get("sym") is True and bool((zero == 1 << (bits - 1)).all())
        if not (awq or symmetric or settings.get("checkpoint_format") == "gptq_v2"):
            zero = zero.int() + 1 & (1 << bits) - 1  # 0 is stored as the largest integer
        own = _order(stored, order, groups) if orders else torch.arange(inputs) // size
        values = _unpack(stored.read(data), bits, 1 if awq else 0, places)
        return _matrix(values, stored.read(scales), zero, own)

    return WeightRule((outputs, inputs), (data, zeros, scales, *orders), make)


def compressed_tensors(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "compressed-tensors", for packed integers and other values."""
    blocks = [block for block in strategies(stored, settings) if block[0] in (1, None)]
    return compressed(stored, settings) | {
        f"{stem}.weight": _compressed(stored, f"{stem}.weight", blocks)
        for stem in stored.stems(".weight_packed")
    }


def _compressed(stored: Stored, name: str, blocks: list[Block]) -> WeightRule:
    data, shape, scale, zero, order = (
        f"{name}_{part}" for part in ("packed", "shape", "scale", "zero_point", "g_idx")
    )
    outputs, inputs, bits = _packed_shape(stored, data, shape)
    grids: dict[Shape, int | None] = {
        (outputs, 1 if side is None else ceil(inputs / side)): side for _, side in blocks
    }
    grids |= {(1,): None} if (None, None) in blocks else {}
    stored.part(scale, FLOATS, grids)
    groups = stored.headers[scale].shape[-1]
    size = grids[stored.headers[scale].shape] or inputs
    parts = [data, shape, scale]
    if zero in stored.headers:
        parts.append(stored.part(zero, ("I32",), [(ceil(outputs * bits / 32), groups)]))
    if order in stored.headers:
        parts.append(stored.part(order, INDICES, [(inputs,)]))

    def make() -> torch.Tensor:
        values = _unpack(stored.read(data), bits, 1)[:, :inputs].T
        middle = torch.tensor(1 << (bits - 1)).expand(groups, 1)
        zeros = _unpack(stored.read(zero), bits, 0)[:outputs].T if zero in parts else middle
        own = _order(stored, order, groups) if order in parts else torch.arange(inputs) // size
        return _matrix(values, stored.read(scale).reshape(-1, groups).T, zeros, own)

    return WeightRule((outputs, inputs), tuple(parts), make)


def _packed_shape(stored: Stored, data: str, shape: str) -> tuple[int, int, int]:
    """A packed matrix's rows, columns and bits."""
    rows, words = stored.matrix(data, ("I32",))
    outputs, inputs = stored.read(stored.part(shape, INDICES, [(2,)])).tolist()
    bits = {ceil(inputs * bits / 32): bits for bits in (8, 4)}.get(words)
    if outputs != rows or inputs <= 0 or bits is None:
        raise stored.error(
            f"tensor {data} has shape {(rows, words)}, but {shape} says {(outputs, inputs)}, which "
            "it does not hold in 4 or 8 bits"
        )
    return outputs, inputs, bits


def _order(stored: Stored, name: str, groups: int) -> torch.Tensor:
    """The group of each input, checked: (in,) int64."""
    order = stored.read(name).long()
    if order.min() < 0 or order.max() >= groups:
        raise stored.error(f"tensor {name} names groups that are not among the {groups}")
    return order


def _unpack(
    words: torch.Tensor, bits: int, axis: int, places: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Integers of an axis of int32 words. places: where in a word they stand, lowest bits 0."""
    shifts = torch.tensor(places if places else range(32 // bits), dtype=torch.int32) * bits
    spread = words.unsqueeze(axis + 1) >> (shifts if axis else shifts[:, None])
    return (spread & (1 << bits) - 1).to(torch.uint8).flatten(axis, axis + 1)


def _matrix(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """scale * (values - zero), turned: values (in, out), scale and zero (G, out) -> (out, in)."""
    wide = values.float()
    wide -= zero.float()[groups]
    return wide.mul_(scale.float()[groups]).T.contiguous()
