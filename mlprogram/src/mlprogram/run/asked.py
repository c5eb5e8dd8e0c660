"""Which steps may be recorded, and for what torch asks in them the calls of compiled code."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlprogram.kernels import native
import torch
from torch import Tensor

if TYPE_CHECKING:
    from mlprogram.run.record import Recorder


#: Ops without a kernel that may be recorded: they look at shapes alone, and never at values.
PLAIN = frozenset(
    [
        "add", "cast", "concat", "equal", "expand_dims", "flatten2d", "greater", "greater_equal",
        "identity", "less", "less_equal", "maximum", "minimum", "mul", "not_equal", "real_div",
        "reshape", "select", "slice_by_index", "slice_by_size", "slice_update", "split", "squeeze",
        "stack", "sub", "tile", "transpose",
    ]
)  # fmt: skip

#: Ops and kernels whose whole numbers are known where those are that they take, and which make a
#: straight line of a straight line (`lines.py`).
SIZES = frozenset(
    [
        "add", "cast", "concat", "expand_dims", "identity", "mul", "range_1d", "reshape", "shape",
        "size", "slice_by_index", "squeeze", "stack", "sub",
    ]
)  # fmt: skip

LOOKS = frozenset(["size", "expand"])  # kernels that look at values

#: What `elementwise` of run.c and `apply` of whole.c do: numbers of walk.h.
ADD, SUB, MUL, DIV, CONVERT, EQUAL, UNEQUAL, LESS, LESS_EQUAL, LEAST, MOST = range(11)

FLOATS = frozenset([torch.float16, torch.float32])

_aten = torch.ops.aten


class NotNative(Exception):
    """A step cannot be part of a stretch; the message says why."""


def entry_of(how: int, x: Tensor, y: Tensor, to: Tensor) -> str:
    """The entry for arithmetic, a comparison or a conversion; raises NotNative if there is none."""
    floats = {x.dtype, to.dtype} <= FLOATS
    if x.dtype != y.dtype or not {x.dtype, to.dtype} <= native.TYPES.keys():
        raise NotNative(f"torch computes it, of {x.dtype} and {y.dtype}")
    if x.dtype in FLOATS and not floats and to.dtype != torch.bool:
        raise NotNative("torch makes whole numbers of floats")
    if (x.dtype == torch.bool and how in (ADD, SUB, MUL)) or (how == DIV and not floats):
        raise NotNative("torch computes it, of no floats")
    return "elementwise" if floats else "apply"


def merged_axes(*tensors: Tensor) -> list[tuple[int, ...]]:
    """For each axis its size, and its step in bytes in each tensor; as few axes as possible."""
    merged: list[tuple[int, ...]] = []
    for axis, size in enumerate(tensors[0].shape):
        steps = [x.stride(axis) * x.itemsize for x in tensors]
        if merged and all(a == b * size for a, b in zip(merged[-1][1:], steps, strict=True)):
            size *= merged.pop()[0]
        if size > 1:
            merged.append((size, *steps))
    return merged or [(1, *[x.itemsize for x in tensors])]


def _clone(recorder: "Recorder", x: Tensor, memory_format=torch.preserve_format) -> Tensor:
    return recorder.copied(x, recorder.own(torch.empty_like(x, memory_format=memory_format)))


def _to_copy(recorder: "Recorder", x: Tensor, dtype: torch.dtype) -> Tensor:
    return recorder.copied(x, recorder.own(torch.empty(x.shape, dtype=dtype)))


def _cat(recorder: "Recorder", tensors: list[Tensor], dim: int = 0) -> Tensor:
    first, begin = tensors[0], 0
    shape = [*first.shape]
    shape[dim] = sum(x.shape[dim] for x in tensors)
    made = recorder.own(torch.empty(shape, dtype=first.dtype))
    for x in tensors:
        part = made.narrow(dim, begin, x.shape[dim])
        if x.dtype != made.dtype or x.shape != part.shape:
            raise NotNative("its parts differ")
        recorder.copied(x, part)
        begin += x.shape[dim]
    return made


def _repeat(recorder: "Recorder", x: Tensor, repeats: list[int]) -> Tensor:
    x = x[(None,) * (len(repeats) - x.dim())]
    made = recorder.own(torch.empty([*map(int.__mul__, repeats, x.shape)], dtype=x.dtype))
    turns = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    for axis in range(len(repeats)):
        x = x.unsqueeze(2 * axis)
    recorder.copied(x, made.view(turns))
    return made


def _stack(recorder: "Recorder", tensors: list[Tensor], dim: int = 0) -> Tensor:
    return _cat(recorder, [x.unsqueeze(dim) for x in tensors], dim)


def _arithmetic(how: int) -> Callable[..., Tensor]:
    def record(recorder: "Recorder", x: Tensor, y: Tensor) -> Tensor:
        return recorder.joined(how, recorder.made(x.dtype, x, y), x, y)

    return record


def _comparison(how: int, swapped: bool = False) -> Callable[..., Tensor]:
    def record(recorder: "Recorder", x: Tensor, y: Tensor) -> Tensor:
        x, y = (y, x) if swapped else (x, y)
        return recorder.joined(how, recorder.made(torch.bool, x, y), x, y)

    return record


def _extreme(how: int) -> Callable[..., Tensor]:
    arithmetic = _arithmetic(how)

    def record(recorder: "Recorder", x: Tensor, y: Tensor) -> Tensor:
        if x.dtype in FLOATS:  # which of two zeros wins is torch's secret
            raise NotNative("torch computes it, of floats")
        return arithmetic(recorder, x, y)

    return record


def _where(recorder: "Recorder", condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if condition.dtype != torch.bool or x.dtype != y.dtype or x.itemsize > 8:
        raise NotNative("what it chooses from differs")
    made = recorder.made(x.dtype, condition, x, y)
    return recorder.fill("select", 0, made, condition, x, y)


#: By the function of torch's that is asked for: what records the calls that give the same.
RECORDED: dict[Any, Callable[..., Tensor]] = {
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: lambda recorder, to, x: recorder.copied(x, to),
    _aten.cat.default: _cat,
    _aten.repeat.default: _repeat,
    _aten.add.Tensor: _arithmetic(ADD),
    _aten.sub.Tensor: _arithmetic(SUB),
    _aten.mul.Tensor: _arithmetic(MUL),
    _aten.div.Tensor: _arithmetic(DIV),
    _aten.stack.default: _stack,
    _aten.where.self: _where,
    _aten.minimum.default: _extreme(LEAST),
    _aten.maximum.default: _extreme(MOST),
    _aten.eq.Tensor: _comparison(EQUAL),
    _aten.ne.Tensor: _comparison(UNEQUAL),
    _aten.lt.Tensor: _comparison(LESS),
    _aten.le.Tensor: _comparison(LESS_EQUAL),
    _aten.gt.Tensor: _comparison(LESS, swapped=True),
    _aten.ge.Tensor: _comparison(LESS_EQUAL, swapped=True),
}
