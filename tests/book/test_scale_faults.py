"""What "Bits" says of coremltools 9.0: scales that fail in silence."""

from ane_book import MLProgram
import coremltools as ct
from coremltools.optimize import coreml as cto
import pytest
import torch


def test_coremltools_gives_zeros_and_tiny_weights_the_scale_0():
    """coremltools #2853; the day that it warns no more, the page has to be read again."""
    weight = torch.randn(4, 64, generator=torch.manual_seed(0))
    weight[1] = 0
    weight[2] *= 1e-6 / weight[2].abs().max()
    linear = torch.nn.Linear(64, 4, bias=False).eval()
    linear.weight.data = weight
    made = ct.convert(
        torch.jit.trace(linear, torch.ones(1, 64)),
        inputs=[ct.TensorType("x", (1, 64))],
        outputs=[ct.TensorType("y")],
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    settings = cto.OptimizationConfig(
        global_config=cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0)
    )
    with pytest.warns(RuntimeWarning):
        made = cto.linear_quantize_weights(made, settings)
    operations = MLProgram.from_mlmodel(made).package.functions["main"].operations()
    (constant,) = (op for op in operations if op.type.startswith("constexpr"))
    scales = constant.inputs["scale"][0].array().ravel()
    assert [bool(scale) for scale in scales] == [True, False, False, True]
