"""What is known to go wrong without an error in assets of Core AI, read off their ops.

A rule takes an op and its claim's value, and says how the op breaks it, or None.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlprogram.package.asset import AssetOp


def _sizes(type_: str) -> list[int]:
    """Sizes of "tensor<1x64xf16>", also within a handle."""
    return [int(size) for size in re.findall(r"(\d+)x", type_)]


def asset_rounds(op: "AssetOp", _) -> str | None:
    """`floor` and `ceil` are written as a division by 1 that rounds down."""
    divided = op.type.endswith("floor_divide")
    by_one = divided and re.match(r"dense<1(\.0*(e\+00)?)?> ", op.operands[1])
    return f"{op.type} by 1" if by_one else None


def asset_argmax(op: "AssetOp", _) -> str | None:
    return "argmax of fp16" if op.type == "argmax" and "f16>" in op.operands[0] else None


def asset_cache(op: "AssetOp", most: int) -> str | None:
    """Of a state's last two axes one has the slots, and the other a row's numbers, or is 1."""
    states = [_sizes(each) for each in op.operands if "handle<" in each and op.type == "graph"]
    slots = [max(sizes[-2:]) for sizes in states if len(sizes) >= 4]
    return f"a state of {max(slots):,} slots" if slots and max(slots) >= most else None


def scale_per_block(op: "AssetOp", _) -> str | None:
    if op.type != "blockwise_shift_scale":
        return None
    scales = _sizes(op.operands[1])
    if all(size == 1 for size in scales[1:]):
        return None
    return f"scales {scales} for {op.operands[0]}"


RULES = (asset_rounds, asset_argmax, asset_cache, scale_per_block)
