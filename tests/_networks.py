"""Small networks made with coremltools' builder, as packages."""

from collections.abc import Callable

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
import numpy as np


def save(path, network: Callable, *shapes: tuple[int, ...], states=(), dtype=types.fp16):
    """Write a network of inputs and fp16 states as a package, its ops as they were built."""
    made = {f"x{i}": mb.placeholder(shape, dtype) for i, shape in enumerate(shapes)}
    for i, shape in enumerate(states):
        made[f"cache{i}"] = mb.state_tensor_placeholder(shape, types.fp16)
    with Function(made, opset_version=ct.target.iOS18) as function:
        found = network(*function.inputs.values())
        function.set_outputs([*found] if isinstance(found, tuple) else [found])
    program = Program()
    program.add_function("main", function)
    how = {"convert_to": "mlprogram", "minimum_deployment_target": ct.target.iOS18}
    as_built = ct.PassPipeline.EMPTY
    ct.convert(program, **how, pass_pipeline=as_built, skip_model_load=True).save(str(path))
    return path


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
