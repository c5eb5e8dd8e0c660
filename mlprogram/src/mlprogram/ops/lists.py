"""Lists: tensors of one shape, written and read by index, that a `while_loop` carries along.

A list is held as one tensor (L, *E): L elements of shape E. Writing gives a new list, as everything
in MIL gives a new value. A write beyond the end makes the list longer, whatever its declared length
says; elements that were never written are zero, and sizes that `make_list` leaves open (strings
such as "s0") are those of the first element written.

Reference: coremltools `defs/iOS15/control_flow.py`. `cond` and `while_loop` themselves are not
functions on tensors: `compile.py` turns them into Python's own.
"""

from mlprogram.errors import InvalidInput
import torch
from torch import Tensor

from . import op
from .elementwise_unary import DTYPES


def _checked(index: Tensor, length: int, name: str) -> Tensor:
    """Indices as int64; InvalidInput for one that is negative or not below `length`."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < length:
        raise InvalidInput(
            f"{name}: index {index.tolist()} is outside of a list of {length} elements"
        )
    return index.long()


def _with_room(ls: Tensor, index: Tensor, element: torch.Size) -> Tensor:
    """A copy of a list that has an element at every index, of the given shape where it was open."""
    length = max(ls.shape[0], int(index.max()) + 1 if index.numel() else 0)
    longer = ls.new_zeros([length, *element])
    if ls.shape[1:] == element:
        longer[: ls.shape[0]] = ls
    return longer


@op()
def make_list(
    elem_shape: list[int | str] | int | str,
    init_length: int = 1,
    dynamic_length: bool = True,
    dtype: str = "fp32",
) -> Tensor:
    """`init_length` elements; sizes given as strings are open until an element is written."""
    sizes = elem_shape if isinstance(elem_shape, list) else [elem_shape]
    known = [0 if isinstance(size, str) else size for size in sizes]
    return torch.zeros([init_length, *known], dtype=DTYPES[dtype])


@op()
def list_length(ls: Tensor) -> Tensor:
    """The number of elements, an int32 scalar."""
    return torch.tensor(ls.shape[0], dtype=torch.int32)


@op()
def list_read(ls: Tensor, index: Tensor) -> Tensor:
    """The element at `index`."""
    return ls[_checked(index.flatten(), ls.shape[0], "list_read")[0]]


@op()
def list_write(ls: Tensor, index: Tensor, value: Tensor) -> Tensor:
    """The list with `value` (*E) at `index`."""
    return list_scatter(ls, index.flatten(), value[None])


@op()
def list_gather(ls: Tensor, indices: Tensor) -> Tensor:
    """The elements at indices (K,), stacked: (K, *E)."""
    return ls.index_select(0, _checked(indices, ls.shape[0], "list_gather"))


@op()
def list_scatter(ls: Tensor, indices: Tensor, value: Tensor) -> Tensor:
    """The list with value (K, *E) at indices (K,); of equal indices the last one counts."""
    longer = _with_room(ls, indices, value.shape[1:])
    at = _checked(indices, longer.shape[0], "list_scatter")
    for place, element in zip(at.tolist(), value, strict=True):
        longer[place] = element
    return longer
