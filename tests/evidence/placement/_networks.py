"""Small networks made with coremltools' builder, as packages."""

from collections.abc import Callable
from pathlib import Path

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import numpy as np

__all__ = ["convolutions", "half", "save"]

TARGET = ct.target.macOS15


def half(*shape: int) -> np.ndarray:
    """A weight; all its values are equal, since nobody looks at them."""
    return np.full(shape, 0.01, np.float16)


def save(
    path: Path, network: Callable, *shapes: tuple[int, ...], dtype=types.fp16, states=()
) -> Path:
    """Write a network of inputs x0, x1, ... as a package; states: shapes of fp16 states."""
    specs = [mb.TensorSpec(shape, dtype) for shape in shapes]
    specs += [mb.StateTensorSpec(shape, types.fp16) for shape in states]
    names = [f"x{i}" for i in range(len(specs))]
    scope = {"network": network, "mb": mb}
    exec(f"def call({', '.join(names)}): return network({', '.join(names)})", scope)
    program = mb.program(input_specs=specs, opset_version=TARGET)(scope["call"])
    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=TARGET,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


def convolutions(count: int, channels: int = 64, kernel: int = 3) -> Callable:
    """So many convolutions, each followed by relu."""
    weight = half(channels, channels, kernel, kernel)

    def network(x):
        for _ in range(count):
            x = mb.relu(x=mb.conv(x=x, weight=weight, pad_type="same"))
        return x

    return network
