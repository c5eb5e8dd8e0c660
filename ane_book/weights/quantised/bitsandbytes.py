"""Weights of bitsandbytes: rows of int8, or blocks of 4-bit indices into a table (NF4, FP4).

    int8   X.weight (out, in) I8; X.SCB (out,), the largest absolute value of a row, which 127
           stands for; X.weight_format, 0 for a matrix by rows
    4-bit  X.weight: bytes with two indices each, the first in the high half;
           X.weight.quant_map (16,), the table; X.weight.absmax, a scale a block, or with nested
           quantisation indices into X.weight.nested_quant_map (256,), times
           X.weight.nested_absmax, plus an offset; X.weight.quant_state.bitsandbytes__nf4 (or
           __fp4): JSON with shape, block sizes and that offset

References: bitsandbytes, nn/modules.py, functional.py (QuantState) and backends/default/ops.py.
"""

import json
from math import ceil, prod
from typing import Annotated

from ane_book.errors import UnsupportedModel, first_fault
from ane_book.weights.quantised.stored import ADVICE, FLOATS, Stored, WeightRule
from pydantic import BaseModel, Field, ValidationError
import torch

STATE, KINDS = ".quant_state.bitsandbytes__", ("nf4", "fp4")
WIDTHS = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}  # bytes of what 4-bit weights may be stored as
STATE_BYTES = 10_000  # a state has some 200
Size = Annotated[int, Field(gt=0, lt=1 << 32)]
BlockSize = Annotated[int, Field(gt=0, le=1 << 16)]  # 32 to 4096


class _QuantState(BaseModel):
    """The fields of a quant_state that say what a weight is."""

    shape: Annotated[tuple[Size, ...], Field(min_length=2, max_length=3)]
    blocksize: BlockSize
    nested_blocksize: BlockSize | None = None
    nested_offset: float = Field(default=0.0, allow_inf_nan=False)


def bitsandbytes(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "bitsandbytes"."""
    rows = {name: _int8(stored, name) for name in stored.of_type(("I8",), ".weight")}
    names = [*stored.of_type(("U8",), ".weight"), *stored.stems(".absmax")]
    return rows | {name: _four_bits(stored, name) for name in dict.fromkeys(names)}


def _int8(stored: Stored, name: str) -> WeightRule:
    shape, stem = stored.matrix(name, ("I8",)), name.removesuffix("weight")
    scale = stored.part(f"{stem}SCB", FLOATS, [(shape[0],)])
    order = f"{stem}weight_format"
    orders = (stored.part(order, ("U8",)),) if order in stored.headers else ()
    if orders and stored.read(order).any():
        raise UnsupportedModel(
            f"{stored.place}: tensor {order} is not 0, which is for rows: {name} is tiled for one "
            f"kind of GPU; {ADVICE}"
        )

    def make() -> torch.Tensor:
        return stored.read(name).float().mul_(stored.read(scale).float()[:, None] / 127)

    return WeightRule(shape, (name, scale, *orders), make)


def _four_bits(stored: Stored, name: str) -> WeightRule:
    place, state = _state(stored, name)
    count = prod(state.shape)
    blocks = ceil(count / state.blocksize)
    table = stored.part(f"{name}.quant_map", FLOATS, [(16,)])
    parts = [name, place, table, f"{name}.absmax"]
    nested = state.nested_blocksize
    if nested is not None:
        outer = ceil(blocks / nested)
        parts.append(stored.part(f"{name}.nested_absmax", FLOATS, [(outer,)]))
        parts.append(stored.part(f"{name}.nested_quant_map", FLOATS, [(256,)]))
    stored.part(f"{name}.absmax", FLOATS if nested is None else ("U8",), [(blocks,)])
    dtype, shape = stored.headers[stored.part(name, tuple(WIDTHS))]
    if prod(shape) * WIDTHS[dtype] != ceil(count / 2):
        raise stored.error(f"tensor {name} of {shape} does not hold {state.shape} in 4 bits")

    def make() -> torch.Tensor:
        data = stored.read(name).flatten().view(torch.uint8)
        indices = torch.stack((data >> 4, data & 15), dim=-1).flatten()[:count]
        values = stored.read(table).float()[indices.int()]
        absmax = stored.read(f"{name}.absmax")
        if nested is None:
            scales = absmax.float()
        else:  # of which nested quantisation made bytes
            scales = stored.read(f"{name}.nested_quant_map").float()[absmax.int()]
            outer = stored.read(f"{name}.nested_absmax").float().repeat_interleave(nested)
            scales = scales * outer[:blocks] + state.nested_offset
        scales = scales.repeat_interleave(state.blocksize)
        return values.mul_(scales[:count]).reshape(state.shape)

    return WeightRule(state.shape, tuple(parts), make)


def _state(stored: Stored, name: str) -> tuple[str, _QuantState]:
    """The name and the contents of a weight's quant_state."""
    names = [f"{name}{STATE}{kind}" for kind in KINDS]
    place = next((own for own in names if own in stored.headers), names[0])
    stored.part(place, ("U8",))
    data = stored.read(place).flatten()
    try:
        if len(data) > STATE_BYTES:
            raise ValueError(f"{len(data)} bytes")
        return place, _QuantState.model_validate(json.loads(bytes(data.tolist())))
    except ValidationError as error:
        raise stored.error(f"tensor {place}: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise stored.error(f"tensor {place} is no JSON: {error}") from None
