"""Networks of `transformers` with small sizes and random weights, as coremltools converts them."""

from pathlib import Path
import sys

sys.path.append(str(Path(__file__).resolve().parents[1] / "onnx"))
from _models import Wrapped, build, given
import coremltools as ct
import numpy as np
import torch

#: Of the architectures of tests/onnx some that coremltools 9 converts; most others ask for
#: `new_ones`, which it has not.
CONVERTED = (
    "convnext", "convnextv2", "deberta", "deberta-v2", "dinov3_vit", "fnet", "focalnet", "levit",
    "mamba", "mobilenet_v2", "mobilevit", "poolformer", "pvt_v2", "regnet", "resnet", "segformer",
    "swiftformer", "swin", "xlm", "xlnet",
)  # fmt: skip


def convert(name: str, path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Write the package; returns its inputs, and what torch gives for them, in order."""
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
        made = ct.convert(
            traced, inputs=inputs, minimum_deployment_target=ct.target.iOS18, skip_model_load=True
        )
    made.save(str(path))
    return arrays, want
