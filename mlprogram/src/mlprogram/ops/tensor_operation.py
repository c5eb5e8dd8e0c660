"""Ops that join, split, fill, order and describe tensors.

Reference: coremltools `defs/iOS15..iOS17/tensor_operation.py`, and `defs/iOS15/control_flow.py` for
`select`. Indices leave as int32 unless a program asks for uint16.
"""

from math import ceil, prod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op, other


@op()
def concat(values: list[Tensor], axis: int, interleave: bool = False) -> Tensor:
    """The tensors one after the other along an axis; interleaved: element by element in turn."""
    rank = values[0].dim()
    if rank == 0:  # scalars make a vector
        return torch.stack(values)
    if interleave:
        axis %= rank
        return torch.stack(values, axis + 1).flatten(axis, axis + 1)
    return torch.cat(values, axis)


@op()
def split(
    x: Tensor, axis: int, num_splits: int | None = None, split_sizes: list[int] | None = None
) -> tuple[Tensor, ...]:
    """x cut along an axis into parts of the given sizes, or into `num_splits` equal ones."""
    if split_sizes is not None:
        return x.split(split_sizes, axis)
    if num_splits is None:
        raise ValueError("neither num_splits nor split_sizes says where")
    return x.split(x.shape[axis] // num_splits, axis)


@op()
def stack(values: list[Tensor], axis: int) -> Tensor:
    """Tensors of one shape along a new axis."""
    return torch.stack(values, axis)


@op()
def identity(x: Tensor) -> Tensor:
    """x itself."""
    return x


@op()
def select(cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where cond is true, else b; the three broadcast."""
    return torch.where(cond, a, b)


@op()
def shape(x: Tensor) -> Tensor:
    """The sizes of x's axes, int32 (rank,)."""
    return torch.tensor(x.shape, dtype=torch.int32)


@op()
def tile(x: Tensor, reps: list[int]) -> Tensor:
    """x repeated reps[i] times along axis i; a view where only axes of size 1 are repeated."""
    if all(rep == 1 or size == 1 for rep, size in zip(reps, x.shape, strict=True)):
        return x.expand([rep * size for rep, size in zip(reps, x.shape, strict=True)])
    return x.repeat(reps)


@op()
def flatten2d(x: Tensor, axis: int = 1) -> Tensor:
    """(product of the axes before `axis`, product of the others)."""
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


# --- fill -------------------------------------------------------------------------------------


@op()
def fill(shape: list[int], value: float = 0.0, *, _out: list) -> Tensor:
    """A tensor of one value, in the declared dtype."""
    return torch.full(shape, value, dtype=_out[0][0])


@op()
def fill_like(ref_tensor: Tensor, value: float = 0.0, *, _out: list) -> Tensor:
    """A tensor of one value in another's shape; the value, not the tensor, sets the dtype."""
    return torch.full(ref_tensor.shape, value, dtype=_out[0][0])


@op()
def range_1d(start: float, end: float, step: float, *, _out: list) -> Tensor:
    """start, start + step, ... as far as it is before `end`; (ceil((end - start) / step),)."""
    length = max(0, ceil((end - start) / step))
    dtype = torch.int64 if isinstance(step, int) else torch.float64
    return (torch.arange(length, dtype=dtype) * step + start).to(_out[0][0])


@op()
def one_hot(
    indices: Tensor,
    one_hot_vector_size: int,
    axis: int = -1,
    on_value: float = 1,
    off_value: float = 0,
    *,
    _out: list,
) -> Tensor:
    """A new axis with `on_value` at the index and `off_value` elsewhere; outside: all off."""
    axis %= indices.dim() + 1
    positions = torch.arange(one_hot_vector_size, dtype=torch.int32)
    positions = positions.reshape([-1] + [1] * (indices.dim() - axis))
    hit = indices.to(torch.int32).unsqueeze(axis) == positions
    return torch.full(hit.shape, off_value, dtype=_out[0][0]).masked_fill(hit, on_value)


@op()
def pad(
    x: Tensor,
    pad: list[int],
    mode: Literal["constant", "reflect", "replicate"] = "constant",
    constant_val: float = 0.0,
) -> Tensor:
    """The last len(pad) / 2 axes with pad[2i] elements before and pad[2i + 1] after.

    "reflect" mirrors without the edge, "replicate" repeats the edge.
    """
    count = len(pad) // 2
    if mode == "constant":
        pairs = [pad[2 * i : 2 * i + 2] for i in reversed(range(count))]  # torch: last axis first
        return F.pad(x, [size for pair in pairs for size in pair], value=constant_val)
    y = x.clone()
    for i in range(count):
        before, after = pad[2 * i : 2 * i + 2]
        axis = x.dim() - count + i
        last = x.shape[axis] - 1
        index = torch.arange(-before, last + 1 + after)
        if mode == "reflect":
            index = last - (last - index.abs()).abs()
        if before or after:
            y = y.index_select(axis, index.clamp(0, last))
    return y


@op()
def band_part(x: Tensor, lower: int = -1, upper: int = -1) -> Tensor:
    """x with zeros below `lower` subdiagonals and above `upper` superdiagonals; negative: keep."""
    y = x.triu(-lower) if lower >= 0 else x.clone()
    return y.tril(upper) if upper >= 0 else y


# --- order ------------------------------------------------------------------------------------


@op()
def cumsum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums along an axis, in float32 (int32 for integers), rounded once.

    exclusive: of the elements before each; reverse: from the end.
    """
    y = x.flip(axis) if reverse else x
    y = y.cumsum(axis, dtype=torch.float32 if x.is_floating_point() else torch.int32)
    if exclusive:
        zero = torch.zeros_like(y.narrow(axis, 0, 1))
        y = torch.cat([zero, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return (y.flip(axis) if reverse else y).to(x.dtype)


@op()
def non_zero(x: Tensor) -> Tensor:
    """Indices of the elements that are not zero, int32 (count, rank)."""
    return x.nonzero().to(torch.int32)


@op()
def argsort(x: Tensor, axis: int = -1, ascending: bool = False) -> Tensor:
    """The indices that sort x along an axis, int32; equal elements keep their order."""
    return x.argsort(dim=axis, descending=not ascending, stable=True).to(torch.int32)


@other("argsort", "reported", "sort-nan")
def argsort_from_nan(x: Tensor, axis: int = -1, ascending: bool = False) -> Tensor:
    """`argsort` with NaN below every number, where torch and numpy have it above."""
    is_nan = x.isnan()
    order = argsort(x.masked_fill(is_nan, float("-inf")), axis, ascending).long()
    late = is_nan.gather(axis, order).byte()
    again = late.argsort(dim=axis, descending=ascending, stable=True)
    return order.gather(axis, again).to(torch.int32)


@op()
def topk(
    x: Tensor,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Tensor | tuple[Tensor, Tensor]:
    """The k greatest (ascending: least) elements along an axis, in order, and their indices.

    k = -1 is all of them. Equal elements come in the order of their indices, as argmax has it. The
    order that `sort=False` leaves open is this one too.
    """
    size = x.shape[axis] if k == -1 else k
    values, indices = x.sort(dim=axis, descending=not ascending, stable=True)
    values = values.narrow(axis, 0, size).clone()  # not a view that keeps all of the sorted x alive
    if not return_indices:
        return values
    dtype = torch.uint16 if output_indices_dtype == "uint16" else torch.int32
    return values, indices.narrow(axis, 0, size).to(dtype)


# --- non-maximum suppression ------------------------------------------------------------------


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of a box (4,) with others (B, 4); a box is x, y, width, height."""
    low = torch.maximum(box[:2] - box[2:] / 2, others[:, :2] - others[:, 2:] / 2)
    high = torch.minimum(box[:2] + box[2:] / 2, others[:, :2] + others[:, 2:] / 2)
    shared = (high - low).clamp(min=0).prod(-1)
    union = box[2:].prod() + others[:, 2:].prod(-1) - shared
    return torch.where(union > 0, shared / union, 0.0)


def kept_boxes(
    boxes: Tensor,
    scores: Tensor,
    iou: float,
    limit: float | None,
    count: int,
    per_class: bool,
) -> list[int]:
    """Indices of the boxes (B, 4) that stay, best first; the best one if none reaches `limit`.

    limit: None from iOS 17 on. There a box goes whose overlap is just the threshold; before it
    stays: Apple's `test_nms_corner_case_iou_equal_threshold` wants both.
    """
    best, classes = scores.max(-1)
    order = best.argsort(descending=True, stable=True)
    candidates = order if limit is None else order[best[order] >= limit]
    kept: list[int] = []
    while len(candidates) and len(kept) < count:
        first, candidates = candidates[0], candidates[1:]
        kept.append(int(first))
        overlap = _overlap(boxes[first], boxes[candidates])
        covered = overlap > iou if limit is not None else (overlap >= iou) & (overlap > 0)
        if per_class:
            covered &= classes[candidates] == classes[first]
        candidates = candidates[~covered]
    return kept or [int(order[0])]


@op()
def non_maximum_suppression(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    max_boxes: int,
    score_threshold: float | None = None,
    per_class_suppression: bool = False,
) -> tuple[Tensor, ...]:
    """The best boxes without those that overlap a better one: boxes, scores, indices (and count).

    boxes (n, B, 4) and scores (n, B, K) before iOS 17, told by `score_threshold`, which gives the
    counts (n,) too; (n, 4, B) and (n, K, B) from iOS 17 on. A box counts by its best class. Unused
    places hold 0, and index -1; at least one box is given.
    """
    last = score_threshold is None
    if last:
        boxes, scores = boxes.mT, scores.mT
    batch, _, classes = scores.shape
    out_boxes = boxes.new_zeros(batch, max_boxes, 4)
    out_scores = scores.new_zeros(batch, max_boxes, classes)
    out_indices = torch.full((batch, max_boxes), -1, dtype=torch.int32)
    counts = torch.zeros(batch, dtype=torch.int32)
    for i in range(batch):
        kept = kept_boxes(
            boxes[i].float(),
            scores[i].float(),
            iou_threshold,
            score_threshold,
            max_boxes,
            per_class_suppression,
        )
        counts[i] = n = len(kept)
        out_boxes[i, :n], out_scores[i, :n] = boxes[i, kept], scores[i, kept]
        out_indices[i, :n] = torch.tensor(kept, dtype=torch.int32)
    if last:
        return out_boxes.mT.contiguous(), out_scores.mT.contiguous(), out_indices
    return out_boxes, out_scores, out_indices, counts
