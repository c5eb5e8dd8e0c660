"""Tensors of a checkpoint of which a parameter has a part."""

from dataclasses import dataclass

from ane_book.models.base.architecture import Shape, TensorSpec
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Tap(TensorSpec):
    """One tap of a depthwise convolution, (channels, 1, taps)."""

    number: int

    @property
    def given(self) -> Shape:
        return self.shape[:1]

    def rows(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[:, 0, self.number])


@dataclass(frozen=True, kw_only=True)
class Half(TensorSpec):
    """Part 0 or 1 of every 2 `size` rows, `size` rows of them."""

    size: int
    part: int

    @property
    def given(self) -> Shape:
        return self.shape[0] // 2, *self.shape[1:]

    def rows(self, array: np.ndarray) -> np.ndarray:
        own = array.reshape(-1, 2, self.size, *array.shape[1:])[:, self.part]
        return own.reshape(self.given)
