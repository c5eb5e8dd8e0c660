"""Small networks made with coremltools' builder, as packages."""

from collections.abc import Callable

from _segmenter import script
from coremltools.converters.mil import Builder as mb
import numpy as np

__all__ = ["convolutions", "half", "reports", "save"]

reports = script("placement_reports")


def save(path, network: Callable, *shapes: tuple[int, ...], states=()):
    """Write a network of fp16 inputs and states as a package."""
    return reports.write_package(path, network, shapes, states)


def half(*shape: int) -> np.ndarray:
    """A weight; all its values are equal, since nobody looks at them."""
    return np.full(shape, 0.01, np.float16)


def convolutions(count: int, channels: int = 64, kernel: int = 3) -> Callable:
    """So many convolutions, each followed by relu."""
    weight = half(channels, channels, kernel, kernel)

    def network(x):
        for _ in range(count):
            x = mb.relu(x=mb.conv(x=x, weight=weight, pad_type="same"))
        return x

    return network
