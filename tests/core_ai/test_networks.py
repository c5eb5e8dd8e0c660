"""Networks of `transformers` with small sizes and random weights, converted by coremltools: the
executor's numbers are torch's.

`test_wild.py` runs these with Core AI's runtime beside the executor.
"""

from pathlib import Path
import sys

from _foreign import package
from _long import long_but

sys.path.append(str(Path(__file__).resolve().parents[1] / "onnx"))
from _models import Wrapped, build, given
import coremltools as ct
from mlprogram import MLProgram
import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

#: Of the architectures of tests/onnx some that coremltools 9 converts; most others ask for
#: `new_ones`, which it has not.
CONVERTED = (
    "convnext", "convnextv2", "deberta", "deberta-v2", "dinov3_vit", "fnet", "focalnet", "levit",
    "mamba", "mobilenet_v2", "mobilevit", "poolformer", "pvt_v2", "regnet", "resnet", "segformer",
    "swiftformer", "swin", "xlm", "xlnet",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # the converter's own
@pytest.mark.parametrize("name", long_but(CONVERTED, "resnet"))
def test_a_network_of_transformers(name, tmp_path):
    arrays = given(name, 1)
    model = Wrapped(build(name), list(arrays))
    tensors = [torch.from_numpy(a) for a in arrays.values()]
    inputs = [
        ct.TensorType(n, a.shape, dtype=np.int32 if a.dtype.kind == "i" else np.float32)
        for n, a in arrays.items()
    ]
    with torch.no_grad():
        want = [y.numpy() for y in model(*tensors)]
        traced = torch.jit.trace(model, tensors, check_trace=False)
    path = package(traced, tmp_path / f"{name}.mlpackage", inputs=inputs)
    program = MLProgram(path, precision="fp32")
    found = program.predict({key: arrays[key] for key in program.inputs})
    for one, other in zip(found.values(), want, strict=True):
        assert np.abs(one - other).max() < 2e-2 * np.abs(other).max()
