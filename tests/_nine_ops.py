"""Nine ops in a row, named as in the recorded plan of an M4 (recorded_plans.json)."""

from pathlib import Path

from _networks import save
from coremltools.converters.mil import Builder as mb
import numpy as np


def nine_ops(path: Path) -> Path:
    rng = np.random.default_rng(0)

    def network(x):
        for name in ("in0_0", "in0_1", "out_0", "out_1"):
            weight = (rng.standard_normal((8, 8, 1, 1)) / 3).astype(np.float16)
            x = mb.conv(x=x, weight=weight, name=f"wrap_{name}_conv")
            x = mb.relu(x=x, name=f"wrap_{name}_relu")
            if name == "in0_1":
                x = mb.mul(x=x, y=np.float16(1.5), name="affine_0")
        return x

    return save(path, network, (1, 8, 4, 4))
