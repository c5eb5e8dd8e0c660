"""Matching by value: what counts as the same numbers, and what does not; compressed weights."""

from _long import long_but
from _sources import NETWORKS, export, faulty, made, package
import coremltools as ct
from coremltools.optimize import coreml as cto
from mlprogram.onnx.source import compare_with_source
from mlprogram.onnx.source.match import PackageValue, ValueIndex, align, gap
from mlprogram.onnx.source.variants import compared_weights
import numpy as np
import pytest
import torch
from torch import nn

RANDOM = np.random.default_rng(9)


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x[:, :, None, :],  # (2, 3, 1, 5, 4)
        lambda x: x.reshape(6, 20),
        lambda x: x.transpose(0, 2, 3, 1),
        lambda x: x.transpose(3, 1, 0, 2).reshape(1, 4, 1, 30),
        lambda x: x.transpose(0, 2, 1, 3).reshape(2, 5, 12),
    ],
    ids=["a new axis", "joined axes", "channels last", "joined and moved", "heads joined"],
)
def test_a_value_is_known_in_another_layout(laid_out):
    x = reals(2, 3, 5, 4)
    aligned, layout, error = align(x, laid_out(x), 1e-6)
    assert np.array_equal(aligned, x) and error == 0
    assert bool(layout) == (not np.array_equal(laid_out(x).ravel(), x.ravel()))


def test_the_same_numbers_in_no_order_of_axes_are_another_value():
    x = reals(4, 6)
    assert align(x, RANDOM.permuted(x.ravel()).reshape(4, 6), 1e-3) is None


def test_masks_agree_whatever_stands_for_minus_infinity():
    scores = reals(3, 4)
    mask = np.triu(np.ones((3, 4), bool), 1)
    ours, theirs = (np.where(mask, value, scores) for value in (-1e4, -np.inf))
    assert gap(ours, theirs) == 0
    other = np.where(mask, -1e4, 1.01 * scores)
    assert gap(other, theirs) == pytest.approx(0.01, rel=1e-3)  # of the scores, not of the mask


def test_whole_numbers_agree_only_where_they_are_equal():
    ids = np.array([100_000, 2, 3])
    assert gap(ids.astype(np.int32), ids) == 0
    assert gap(ids + 1, ids) == np.inf


def test_one_factor_of_weights_is_said_once():
    weights, rows = reals(4, 3), np.array([[1.05], [1.05], [1.05], [2.1]], np.float32)
    for factor, times in ((np.float32(1.05), "1.05"), (rows, "1.05 to 2.1")):
        _, said = compared_weights(weights, factor * weights)
        assert said == f"it is {times} times as large along axis 0"


def test_one_side_of_nan_is_no_match():
    x = reals(5)
    broken = x.copy()
    broken[2] = np.nan
    assert gap(broken, x) > 1 and gap(x, broken) > 1e-3


def test_the_first_value_as_it_stands_is_taken():
    x = reals(3, 5)
    values = [PackageValue("moved", "transpose", x.T), PackageValue("here", "add", x + 1e-6)]
    assert ValueIndex(values, 1e-3).find("x", x).package.name == "here"
    assert ValueIndex(values[:1], 1e-3).find("x", x).layout == "its axes by (1, 0)"
    assert ValueIndex(values, 1e-3).find("x", 2 * x) is None


def compressed(tmp_path, module, inputs, how, least=64):
    path = package(module, inputs, tmp_path / "plain.mlpackage", True)
    model = ct.models.MLModel(str(path), skip_model_load=True)
    if how == "int8":
        settings = cto.OpLinearQuantizerConfig(weight_threshold=least)
        small = cto.linear_quantize_weights(model, cto.OptimizationConfig(settings))
    else:
        settings = cto.OpPalettizerConfig(mode="uniform", nbits=int(how), weight_threshold=least)
        small = cto.palettize_weights(model, cto.OptimizationConfig(settings))
    small.save(str(tmp_path / "small.mlpackage"))
    return tmp_path / "small.mlpackage"


def test_a_norm_that_is_folded_into_compressed_weights(tmp_path):
    """The source has no such weights, so that they cannot be seen to be its own."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    module[1].running_var.uniform_(0.05, 4)
    x = {"input": torch.randn(1, 3, 12, 12)}
    source = export(module.eval(), x, tmp_path / "source.pt2")
    found = compare_with_source(compressed(tmp_path, module, x, "4", 16), source, trust_source=True)
    assert found.equal and found.matched == found.values - 1, str(found)


@pytest.mark.parametrize("how", long_but(["int8", "4"], "int8"))  # bits, of a palette
def test_quantisation_is_no_fault_and_a_wrong_scale_is(how, tmp_path):
    """https://github.com/apple/coremltools/issues/2114 is about results of quantised weights that
    are wrong; here a row of a matrix has twice the scale."""

    def double(module):
        module.up.weight[7] *= 2

    x = NETWORKS["decoder"][1]
    source = export(made("decoder"), x, tmp_path / "source.pt2")
    path = compressed(tmp_path, made("decoder"), x, how)
    sound = compare_with_source(path, source, trust_source=True)
    assert sound.equal, str(sound)
    path = compressed(tmp_path, faulty("decoder", double), x, how)
    wrong = compare_with_source(path, source, trust_source=True)
    assert wrong.first.node.op == "linear.default", str(wrong)
    assert wrong.first.kind == "scale" or how == "4", str(wrong)
    assert "up" in wrong.first.node.where
