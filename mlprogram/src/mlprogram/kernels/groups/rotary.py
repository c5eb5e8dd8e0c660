"""Rotary embedding as one kernel: x cos + [-b, a] sin for x = [a, b] along one axis.

The halves are split or sliced; b is negated by an op, or by the table of sines. Or each half is
computed, of tables for a half, and both are joined. The kernel rounds where the ops round.
"""

from collections.abc import Callable

from mlprogram.kernels.graph import Match, Unfit, is_halved, is_stretch
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.native.ops import Turn
from mlprogram.kernels.pattern import either, op
from mlprogram.kernels.plainly import plainly
import torch
from torch import Tensor

FIRST = either(op("split", "split", 0, x="x"), op("slice_by_index", "first", x="x"))
SECOND = either(op("split", "split", 1, x="x"), op("slice_by_index", "second", x="x"))
TURNED = op(
    "concat",
    "turned",
    values=[either(op("mul", "minus", x=SECOND, y=-1.0), SECOND), FIRST],
    interleave=False,
)
HALVES = [
    op("sub", "halves", x=op("mul", x=FIRST, y="cos"), y=op("mul", x=SECOND, y="sin")),
    op("add", x=op("mul", x=SECOND, y="cos"), y=op("mul", x=FIRST, y="sin")),
]
ROTARY = (
    op("add", x=op("mul", x="x", y="cos"), y=op("mul", x=TURNED, y="sin")),
    op("concat", "turned", values=HALVES, interleave=False),
)

OPEN = 6  # stands for a size that is open while halves are looked for


def prepare(match: Match) -> tuple[list, Callable]:
    """The operands and the kernel; raises Unfit if the swapped parts are not the halves of x."""
    names = ["x", "cos", "sin"]
    types = [match.graph.types[match[name]] for name in names]
    made = match.graph.types[match.result]
    if {type_.dtype for type_ in types} != {made.dtype} or made.dtype not in ("fp16", "fp32"):
        raise Unfit("its operands differ in dtype, or are no floats")
    rank, axis = len(types[0].shape), match.get("turned", "axis")
    if rank < 2 or not isinstance(axis, int) or not -rank <= axis < rank:
        raise Unfit("it is turned along no axis that is known")
    axis = axis - rank if axis >= 0 else axis
    shape = tuple(n or OPEN for n in types[0].shape)
    if types[0].shape[axis] is None or shape[axis] % 2 or not _are_halves(match, shape, axis):
        raise Unfit("what trades places are not its halves")
    dtype, operands = match.graph.constants.dtype(made), [match[name] for name in names]
    return operands, _looking(match, operands, axis, shape[axis], dtype)


def _are_halves(match: Match, shape: tuple[int, ...], axis: int) -> bool:
    """Whether the parts of x, of this shape, are its halves along `axis`."""
    if "split" in match.named:
        sliced = {"first", "second"} & match.named.keys()
        return not sliced and is_halved(match, "split", shape, axis)
    size = shape[axis] // 2
    return all(
        is_stretch(match, name, shape, axis, begin, size)
        for begin, name in ((0, "first"), (size, "second"))
    )


def _looking(
    match: Match, operands: list[str], axis: int, size: int, dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function that runs the kernel if a call's tables have the shape of x's last axes, and the
    plain ops otherwise."""
    plain = plainly(match, operands)
    turn = Turn.NEGATED if "minus" in match.named else Turn.SWAPPED
    turn = Turn.HALVED if "halves" in match.named else turn
    run = native_ops.rotary(axis, turn, dtype)
    rank = len(match.graph.types[operands[0]].shape)

    def call(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        table = (x if turn != Turn.HALVED else x.narrow(axis, 0, size // 2)).shape[min(axis, -2) :]
        fits = x.dim() == rank >= cos.dim() and x.shape[axis] == size and x.numel() > 0
        fits = fits and cos.shape == sin.shape and cos.shape[-len(table) :] == table
        fits = fits and cos.numel() == table.numel()
        if not fits or {x.dtype, cos.dtype, sin.dtype} != {dtype}:
            return plain(x, cos, sin)
        return run(x.contiguous(), cos.contiguous(), sin.contiguous())

    return call
