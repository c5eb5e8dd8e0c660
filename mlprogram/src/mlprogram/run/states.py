"""The tensors that a stateful program keeps, and how much of each was ever written.

A cache of keys or values is filled from its first slot on. Attention has to look at slots that the
mask closes too, since what they hold may be large enough to show through it, or not a number. Where
it is known that they hold zeros, it need not read them: a decode step with a short past would
otherwise read the whole cache.
"""

from collections.abc import Mapping
import ctypes
from math import prod
import mmap
from operator import mul
from typing import Any

from mlprogram.ops.tensor_transformation import write_slice
import numpy as np
import torch
from torch import Tensor

UNKNOWN = 2**63 - 1  # slots: more than there are


class States(dict[str, Tensor]):
    """Tensors by name. Of each it may be known how many of its slots, its last axis but one, were
    written; all bytes of the others are zero. Compiled code reads and raises these numbers.

    lent: whether others may write to the tensors too.
    """

    def __init__(self, tensors: Mapping[str, Tensor]):
        super().__init__(tensors)
        self._numbers = {name: ctypes.c_int64(UNKNOWN) for name in tensors}
        self.lent = False

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self.forget(name)
        super().__setitem__(name, tensor)

    @property
    def written(self) -> dict[str, int]:
        """The slots of each state of which that is known."""
        numbers = {name: self.slots(name) for name in self}
        return {name: slots for name, slots in numbers.items() if slots is not None}

    def __reduce__(self) -> tuple:
        """A copy of which nothing is known."""
        return States, (dict(self),)

    def slots(self, name: str) -> int | None:
        """The slots of a state, if that is known."""
        slots = self._numbers[name].value
        return None if slots == UNKNOWN else slots

    def address(self, name: str) -> int:
        """Where the number of a state is."""
        return ctypes.addressof(self._numbers[name])

    def note(self, name: str, slots: int) -> None:
        """Note that so many slots of a state may hold something, and the others hold zeros."""
        if not self.lent:
            self._numbers[name].value = slots

    def forget(self, name: str) -> None:
        self._numbers.setdefault(name, ctypes.c_int64()).value = UNKNOWN

    def clear_all(self) -> None:
        """Zeros everywhere. Where it is known how far a tensor was written, it keeps its memory and
        that much is written; another one gives way to a new one, as others may have it."""
        for name, tensor in [*self.items()]:
            slots = self.slots(name)
            if slots is None:
                self[name] = zero_state(tuple(tensor.shape), tensor.dtype)
                self.note_zeros(name)
            else:
                with torch.inference_mode():  # where the tensor may have been made
                    tensor[..., :slots, :].zero_()
                self.note(name, 0)

    def note_zeros(self, name: str) -> None:
        """Note that a state holds zeros alone."""
        if self[name].dim() > 1:
            self.note(name, 0)

    def lend(self) -> "States":
        """These tensors for others, of which nothing is known from now on."""
        self.lent = True
        for name in self:
            self.forget(name)
        return self


def zero_state(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, of which the system gives each page when it is first written: torch and numpy would
    write them all, or have some given two megabytes at a time."""
    size = prod(shape) * dtype.itemsize
    if size < mmap.PAGESIZE:
        return torch.zeros(shape, dtype=dtype)
    alone = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return torch.frombuffer(mmap.mmap(-1, size, **alone), dtype=dtype).view(shape)


def update_state(states: States, name: str, update: Tensor, **view: Any) -> Tensor:
    """`write_slice` to a state, which is returned."""
    number, state = states._numbers[name], states[name]
    known, number.value = number.value, UNKNOWN  # should it fail, nothing is known
    part = write_slice(state, update, **view)
    if known != UNKNOWN:
        number.value = max(known, _reach(state, part))
    return state


def _reach(state: Tensor, part: Tensor) -> int:
    """The slots of a state, whose memory has no gaps, up to the last one that a part of it has."""
    sizes, strides = part.shape, part.stride()
    if 0 in sizes:
        return 0
    last = part.storage_offset() + sum(map(mul, sizes, strides)) - sum(strides)
    whole = state.shape
    return last // whole[-1] % whole[-2] + 1


def slots_written(tensor: Tensor) -> int:
    """The slots of a state up to the last one that has a byte other than zero."""
    words = tensor.contiguous().numpy().view(f"u{tensor.itemsize}")
    found = np.flatnonzero(words.any(axis=(*range(words.ndim - 2), -1)))
    return int(found[-1]) + 1 if found.size else 0
