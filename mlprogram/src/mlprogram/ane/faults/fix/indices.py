"""Exact rewrites of ops that move elements: gathers, slices, squeezes, selects."""

from math import prod

from mlprogram.ane.faults.fix.edit import Typed
from mlprogram.ane.faults.fix.mend import At, Mend, Rewrite, Unmended
from mlprogram.ops import OPS
import numpy as np
import torch


def gather_negative(at: At) -> Mend:
    """A gather at constant indices below zero -> at the same places counted from the front."""
    x, indices = at.value("x"), at.array("indices")
    if indices is None or int(at.setting("batch_dims", 0)):
        raise Unmended("its indices are computed, or it has batches")
    axis, nd = int(at.setting("axis", 0)), at.operation.type == "gather_nd"
    sizes = x.type.shape[: indices.shape[-1]] if nd else (x.type.shape[axis],)
    if None in sizes:
        raise Unmended("the size of its axis is open")
    whole = np.where(indices < 0, indices + np.array(sizes), indices).astype(np.int32)
    places = torch.from_numpy(whole).long()
    result = at.again(indices=whole)

    def meant(x):
        if nd:
            return x[tuple(places.unbind(-1))]
        if at.operation.type == "gather_along_axis":
            return torch.gather(x, axis, places)
        at_axis = axis % x.dim()
        shape = (*x.shape[:at_axis], *places.shape, *x.shape[at_axis + 1 :])
        return torch.index_select(x, axis, places.reshape(-1)).reshape(shape)

    return at.mend(result, [x], meant)


def gather_unvalidated(at: At) -> Mend:
    """A gather that leaves optional inputs away -> with their defaults written out."""
    defaults: dict[str, bool | int] = {"validate_indices": False}
    if at.operation.type == "gather":
        defaults |= {"axis": 0}
    missing = {key: value for key, value in defaults.items() if key not in at.operation.inputs}
    return at.as_described(at.again(**missing), values=_places(at))


def gather_bool(at: At) -> Mend:
    """A gather of bool -> of 0 and 1, as int32."""
    x = at.make.op("cast", {"x": at.value("x"), "dtype": "int32"}, "int32")
    if not at.operation.type.startswith("gather"):
        raise Unmended(f"a {at.operation.type} of bool is not rewritten")
    given = {key: at.value(key) for key in at.operation.inputs} | {"x": x}
    picked = at.make.op(at.operation.type, given, "int32", at.type.shape)
    result = at.make.op("cast", {"x": picked, "dtype": "bool"}, "bool")
    return at.as_described(result, values=_places(at))


def _places(at: At) -> dict[str, range]:
    """Indices that there are, whichever the axis."""
    if "indices" not in at.operation.inputs:
        return {}
    indices, x = at.value("indices"), at.value("x")
    return {indices.name: range(min((size or 1 for size in x.type.shape), default=1))}


def narrowed(at: At) -> list[Mend]:
    """A gather or squeeze of int32 that are cast to 16 bits for it, and back -> of the int32."""
    source = at.value("x", at.maker("x", at.operation))
    ((name, type_),) = at.operation.outputs
    readers = at.graph.readers.get(name, [])
    if not readers or name in at.graph.outputs or {r.type for r in readers} != {"cast"}:
        raise Unmended("what it makes is not cast back alone")
    op, keys = OPS[at.operation.type], [*at.operation.inputs]
    static = {key: at.setting(key) for key in keys if key in op.static}
    tensors = [key for key in keys if key not in op.static]

    def meant(*given):
        return op.function(**dict(zip(tensors, given, strict=True)), **static)

    mends = []
    for reader in readers:
        here = at.near(reader)
        given = {key: here.value(key, at.operation) for key in keys} | {"x": source}
        moved = here.make.op(at.operation.type, given, source.type.dtype, type_.shape)
        if reader.outputs[0][1].dtype != source.type.dtype:
            moved = here.make.op("cast", {"x": moved, "dtype": reader.outputs[0][1].dtype})
        values = {source.name: (-40_000, -1, 0, 3, 70_000)} | _places(at)
        mends.append(here.mend(moved, [given[key] for key in tensors], meant, values=values))
    return mends


def slice_last_backwards(at: At) -> Mend:
    """A slice from -1 to -2 by -1 -> from -1 by 1 to the end."""
    begin, end = at.array("begin"), at.array("end")
    stride = at.array("stride")
    if begin is None or end is None or stride is None:
        raise Unmended("its ends are computed")
    last = (begin == -1) & (end == -2) & (stride == -1)
    masked = at.array("end_mask")
    mask = last if masked is None else masked | last
    return at.as_described(at.again(stride=np.where(last, 1, stride), end_mask=mask))


def squeeze_wide(at: At) -> Mend:
    """A squeeze of an axis wider than 1 -> without that axis."""
    x, shape = at.value("x"), at.value("x").type.shape
    axes = [axis for axis in at.setting("axes") if shape[axis] in (1, None)]
    if axes:
        kept = {"x": x, "axes": np.array(axes, np.int32)}
        return at.as_described(at.make.op("squeeze", kept, shape=at.type.shape))
    if None in shape:
        raise Unmended("a size is open")
    same = {"x": x, "shape": np.array(x.type.sizes, np.int32)}
    return at.as_described(at.make.op("reshape", same, shape=at.type.shape))


def select_broadcast(at: At) -> Mend:
    """A select that broadcasts -> of operands that are tiled to the whole shape."""
    whole = at.type.shape
    if None in whole:
        raise Unmended("a size is open")
    given = {key: _tiled(at, at.value(key), at.type.sizes) for key in ("cond", "a", "b")}
    return at.as_described(at.again(**given))


def _tiled(at: At, value: Typed, whole: tuple[int, ...]) -> Typed:
    shape = (1,) * (len(whole) - len(value.type.shape)) + value.type.sizes
    if shape == whole:
        return value
    if shape != value.type.shape:
        given = {"x": value, "shape": np.array(shape or (1,), np.int32)}
        value = at.make.op("reshape", given, shape=shape)
    reps = [size // own for size, own in zip(whole, shape, strict=True)]
    if prod(reps) == 1:
        return value
    return at.make.op("tile", {"x": value, "reps": np.array(reps, np.int32)}, shape=whole)


REWRITES: dict[str, Rewrite] = {
    "gather-negative": gather_negative, "gather-unvalidated": gather_unvalidated,
    "gather-bool": gather_bool, "slice-last-backwards": slice_last_backwards,
    "squeeze-wide": squeeze_wide, "select-broadcast": select_broadcast,
    "unsigned-data": narrowed, "gather-narrowed": narrowed, "squeeze-narrowed": narrowed,
}  # fmt: skip
