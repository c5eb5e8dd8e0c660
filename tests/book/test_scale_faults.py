"""What "Bits" says of scales that fail in silence: the textbook's, and those of coremltools 9.0."""

from ane_book import MLProgram
from ane_book.conversion.quantize.encoded import quantize
import coremltools as ct
from coremltools.optimize import coreml as cto
import numpy as np
import pytest
import torch


def textbook(w):
    """int8 with the scale rounded to fp16 as it comes -> the weights that it stores."""
    scale = (np.abs(w).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.round(w / scale).astype(np.int8) * scale


def ours(w):
    data, scale = quantize(torch.from_numpy(w)[:, :, None, None], len(w))
    return (data.astype(np.float32) * scale.astype(np.float32)).reshape(w.shape)


def off(made, w):
    return float(np.linalg.norm(made - w) / np.linalg.norm(w))


def row(largest):
    drawn = np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32)
    return (drawn / np.abs(drawn).max() * largest).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("largest", [1e-3, 1e-4, 2e-5, 1e-5, 1e-6])
def test_ours_keeps_a_row_of_small_weights(largest):
    assert off(ours(row(largest)), row(largest)) < 0.05


def test_the_textbook_loses_one():
    assert max(off(textbook(row(largest)), row(largest)) for largest in (2e-5, 1e-5, 1e-6)) > 0.5


def test_a_cosine_over_all_experts_hides_the_quiet_one():
    bank = np.random.default_rng(0).standard_normal((8, 64, 96)).astype(np.float32)
    bank[-1] /= 100
    whole = np.concatenate(list(bank), axis=1)
    made = ours(whole)
    cosines = [
        float(a.ravel() @ b.ravel() / np.linalg.norm(a) / np.linalg.norm(b))
        for a, b in ((made, whole), (made[:, -96:], whole[:, -96:]))
    ]
    assert cosines[0] > 0.9999 > 0.9 > cosines[1]


def test_a_row_of_zeros_has_the_scale_1():
    data, scale = quantize(torch.zeros(1, 64, 1, 1), 1)
    assert not data.any() and scale.ravel() == [1]


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
