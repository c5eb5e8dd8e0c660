"""The tensors that a stateful program keeps, and how much of each was ever written.

A cache of keys or values is filled from its first slot on. Attention has to look at slots that the
mask closes too, since what they hold may be large enough to show through it, or not a number. Where
it is known that they hold zeros, it need not read them: a decode step with a short past would
otherwise read the whole cache.
"""

from collections.abc import Iterator, Mapping, MutableMapping
import ctypes
from math import prod
import mmap
from typing import TYPE_CHECKING

from mlprogram.package.description import converted
import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = 2**63 - 1  # slots: more than there are


class States(MutableMapping[str, "Tensor"]):
    """Tensors by name, or arrays until torch asks for them. Of each it may be known how many of its
    slots, its last axis but one, were written; all bytes of the others are zero. Compiled code
    reads and raises these numbers.

    lent: whether others may write to the tensors too.
    """

    def __init__(self, values: "Mapping[str, Tensor | np.ndarray]"):
        self._values = dict(values)
        self._numbers = {name: ctypes.c_int64(UNKNOWN) for name in values}
        self.lent = False

    def __getitem__(self, name: str) -> "Tensor":
        value = self._values[name]
        if isinstance(value, np.ndarray):
            import torch

            with torch.inference_mode(False):  # which would be for its owner to leave
                value = self._values[name] = torch.from_numpy(value)
        return value

    def __setitem__(self, name: str, value: "Tensor | np.ndarray") -> None:
        self.forget(name)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name], self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: object) -> bool:  # which asks torch for nothing
        return name in self._values

    def __len__(self) -> int:
        return len(self._values)

    def array(self, name: str) -> np.ndarray:
        """A state's memory as numpy has it."""
        value = self._values[name]
        return value if isinstance(value, np.ndarray) else value.numpy()

    def described(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """The dtype and the shape of a state; None of one that there is not."""
        value = self._values.get(name)
        return None if value is None else (str(value.dtype).split(".")[-1], tuple(value.shape))

    def write(self, name: str, array: np.ndarray) -> None:
        """Replace a state by a copy of an array of its shape, converted."""
        self[name] = own = np.array(converted(array, self.array(name).dtype), order="C")
        if own.ndim > 1:
            self.note(name, slots_written(own))

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
        for name in self:
            slots = self.slots(name)
            if slots is None:
                self[name] = zero_state(self.array(name).shape, self.array(name).dtype)
                self.note_zeros(name)
            else:
                self.array(name)[..., :slots, :] = 0
                self.note(name, 0)

    def note_zeros(self, name: str) -> None:
        """Note that a state holds zeros alone."""
        if self._values[name].ndim > 1:
            self.note(name, 0)

    def lend(self) -> "States":
        """These tensors for others, of which nothing is known from now on."""
        self.lent = True
        for name in self:
            self.forget(name)
        return self


def zero_state(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros, of which the system gives each page when it is first written: torch and numpy would
    write them all, or have some given two megabytes at a time."""
    size = prod(shape) * dtype.itemsize
    if size < mmap.PAGESIZE:
        return np.zeros(shape, dtype)
    alone = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.frombuffer(mmap.mmap(-1, size, **alone), dtype).reshape(shape)


def slots_written(array: np.ndarray) -> int:
    """The slots of a state up to the last one that has a byte other than zero."""
    words = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    found = np.flatnonzero(words.any(axis=(*range(words.ndim - 2), -1)))
    return int(found[-1]) + 1 if found.size else 0
