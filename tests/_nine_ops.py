"""Nine ops in a row, named as in the recorded plan of an M4 (recorded_plans.json)."""

from pathlib import Path

import coremltools as ct
from coremltools.converters.mil import Builder as mb
import numpy as np


def nine_ops(path: Path) -> Path:
    rng = np.random.default_rng(0)

    def weight():
        return (rng.standard_normal((8, 8, 1, 1)) / 3).astype(np.float16)

    @mb.program(
        input_specs=[mb.TensorSpec((1, 8, 4, 4), ct.converters.mil.mil.types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def graph(x):
        for name in ("in0_0", "in0_1", "out_0", "out_1"):
            x = mb.conv(x=x, weight=weight(), name=f"wrap_{name}_conv")
            x = mb.relu(x=x, name=f"wrap_{name}_relu")
            if name == "in0_1":
                x = mb.mul(x=x, y=np.float16(1.5), name="affine_0")
        return x

    target = {"minimum_deployment_target": ct.target.iOS18, "convert_to": "mlprogram"}
    ct.convert(graph, **target, skip_model_load=True).save(str(path))
    return path
