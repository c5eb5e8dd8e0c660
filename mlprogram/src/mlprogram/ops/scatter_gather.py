"""Ops that read and write at indices.

Negative indices count from the end in iOS 15 and 16, which have no `validate_indices` (None here);
from iOS 17 on they lie outside. What lies outside raises InvalidInput, except where a program says
that it is not to be checked: then MIL leaves the result undefined "but memory safe", and here an
update is left out and a read takes the element next to it (before the first: from the end, as
coremltools folds it). Duplicate indices combine in every mode but "update", where one of them wins.

Reference: coremltools `defs/iOS15..iOS17/scatter_gather.py`.
"""

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any, Literal

from mlprogram.errors import InvalidInput
import torch
from torch import Tensor

from . import op, other
from .elementwise_binary import real_div


def _checked(indices: Tensor, size: int | Tensor, validate: bool | None, name: str) -> Tensor:
    """Indices as int64 in [0, size); raises InvalidInput for any that lies outside."""
    indices = indices.long()
    if not validate:
        indices = torch.where(indices < 0, indices + size, indices)
    if ((indices < 0) | (indices >= size)).any():
        end = size.tolist() if isinstance(size, Tensor) else size
        raise InvalidInput(
            f"{name}: indices reach from {indices.min()} to {indices.max()}, outside [0, {end})"
        )
    return indices


def _readable(indices: Tensor, size: int | Tensor, validate: bool | None, name: str) -> Tensor:
    """Indices as int64 in [0, size), brought there where they are not to be checked."""
    if validate is not False:
        return _checked(indices, size, validate, name)
    indices = indices.long()
    indices = torch.where(indices < 0, indices + size, indices)
    return indices.clamp_min(0).minimum(torch.as_tensor(size) - 1)


def _writable(indices: Tensor, size: int | Tensor, validate: bool | None, name: str) -> Tensor:
    """Indices as int64 in [0, size), or `size` for what is outside and not to be checked."""
    if validate is not False:
        return _checked(indices, size, validate, name)
    indices = indices.long()
    return torch.where((indices < 0) | (indices >= size), size, indices)


def _pick(pick, x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """torch.gather or torch.index_select, neither of which has all of uint16."""
    if x.dtype == torch.uint16:
        return pick(x.view(torch.int16), axis, indices).view(torch.uint16)
    return pick(x, axis, indices)


@op()
def gather(
    x: Tensor,
    indices: Tensor,
    axis: int = 0,
    batch_dims: int = 0,
    validate_indices: bool | None = None,
) -> Tensor:
    """Slices of x along an axis: x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1:].

    The first `batch_dims` axes of x and indices go together, as in tf.gather.
    """
    axis %= x.dim()
    indices = _readable(indices, x.shape[axis], validate_indices, "gather")
    shape = x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :]
    if not batch_dims:
        return _pick(torch.index_select, x, axis, indices.reshape(-1)).reshape(shape)
    batch = x.shape[:batch_dims]
    flat = indices.reshape(*batch, *[1] * (axis - batch_dims), -1, *[1] * (x.dim() - axis - 1))
    flat = flat.expand(*x.shape[:axis], -1, *x.shape[axis + 1 :])
    return _pick(torch.gather, x, axis, flat).reshape(shape)


@op()
def gather_along_axis(
    x: Tensor, indices: Tensor, axis: int = 0, validate_indices: bool | None = None
) -> Tensor:
    """For each place of `indices` the element of x at that index along `axis`; indices.shape."""
    indices = _readable(indices, x.shape[axis], validate_indices, "gather_along_axis")
    return _pick(torch.gather, x, axis, indices)


@op()
def gather_nd(
    x: Tensor, indices: Tensor, batch_dims: int = 0, validate_indices: bool | None = None
) -> Tensor:
    """Slices of x at coordinates: indices.shape[:-1] + x.shape[batch_dims + K:].

    The last axis of `indices` holds K coordinates; the first `batch_dims` axes go together.
    """
    depth = indices.shape[-1]
    sizes = torch.tensor(x.shape[batch_dims : batch_dims + depth])
    indices = _readable(indices, sizes, validate_indices, "gather_nd")
    places = indices.dim() - 1
    grids = [  # the batch axes' own indices, each along its axis
        torch.arange(x.shape[i]).reshape([-1 if j == i else 1 for j in range(places)])
        for i in range(batch_dims)
    ]
    coordinates = [*grids, *indices.unbind(-1)]
    if places:
        return x[tuple(coordinates)]
    return x[tuple(c.reshape(1) for c in coordinates)][0]


def _from_first(read: Callable) -> Callable:
    """`read`, where a negative index that is not to be checked reads the first place."""

    @wraps(read)
    def first(x: Tensor, indices: Tensor, *more: Any, **named: Any) -> Tensor:
        return read(x, indices.clamp_min(0), *more, **named)

    return first


other("gather", "reported", "gather-negative")(_from_first(gather))
other("gather_along_axis", "reported", "gather-negative")(_from_first(gather_along_axis))
other("gather_nd", "reported", "gather-nd-negative")(_from_first(gather_nd))


Mode = Literal["update", "add", "sub", "mul", "div", "max", "min"]


def _scatter(data: Tensor, axis: int, indices: Tensor, updates: Tensor, mode: Mode) -> Tensor:
    """data with updates put in or combined at indices (of updates' shape) along an axis.

    An index one beyond the end stands for an update to leave out.
    """
    size = data.shape[axis]
    if indices.numel() and indices.max() >= size:
        longer = torch.cat([data, torch.ones_like(data.narrow(axis, 0, 1))], axis)
        return _scatter(longer, axis, indices, updates, mode).narrow(axis, 0, size)
    if mode == "update":
        return data.scatter(axis, indices, updates)
    if mode in ("max", "min"):
        return data.scatter_reduce(axis, indices, updates, f"a{mode}")
    half = data.dtype == torch.float16
    wide, updates = (data.float(), updates.float()) if half else (data, updates)
    if mode in ("add", "sub"):
        wide = wide.scatter_add(axis, indices, updates if mode == "add" else -updates)
    elif mode == "mul":
        wide = wide.scatter_reduce(axis, indices, updates, "prod")
    else:
        divisor = torch.ones_like(wide).scatter_reduce(axis, indices, updates, "prod")
        wide = real_div(wide, divisor)
    return wide.to(data.dtype)


@op()
def scatter(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int = 0,
    mode: Mode = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """data with slice i of `updates` combined into its slice indices[i] along `axis`.

    indices: of any rank; `updates` has their axes in the place of `axis`. MIL's documentation says
    one axis, coremltools' shape inference and its tests (iOS 14, those with TensorFlow) any number.
    """
    axis %= data.dim()
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    updates = updates.reshape(*before, indices.numel(), *after)
    indices = _writable(indices.flatten(), data.shape[axis], validate_indices, "scatter")
    indices = indices.reshape([-1 if i == axis else 1 for i in range(data.dim())])
    return _scatter(data, axis, indices.expand(updates.shape), updates, mode)


@op()
def scatter_along_axis(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int = 0,
    mode: Mode = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """data with each element of `updates` combined in at its index along `axis`."""
    indices = _writable(indices, data.shape[axis], validate_indices, "scatter_along_axis")
    return _scatter(data, axis, indices, updates, mode)


@op()
def scatter_nd(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    mode: Mode = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """data with slices of `updates` combined in at coordinates (the last axis of `indices`)."""
    depth = indices.shape[-1]
    sizes = torch.tensor(data.shape[:depth])
    indices = _writable(indices, sizes, validate_indices, "scatter_nd")
    steps = sizes.flip(0).cumprod(0).flip(0) // sizes  # row-major distance of each coordinate
    width = prod(data.shape[depth:])  # -1 would not do: there may be nothing to update
    table = data.reshape(int(sizes.prod()), width)
    outside = (indices >= sizes).any(-1)
    rows = (indices * steps).sum(-1).masked_fill(outside, table.shape[0]).reshape(-1, 1)
    updates = updates.reshape(rows.shape[0], width)
    return _scatter(table, 0, rows.expand(updates.shape), updates, mode).reshape(data.shape)
