"""precision="ane": what is published of the engine's arithmetic, where it parts from fp16."""

from ane_book.claims import find
from ane_book.cli import app
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.compare.packages import compare_packages
from mlprogram.run.engine import LOST, SUMS
import numpy as np
import pytest
from typer.testing import CliRunner

N = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Sums of x and of its squares by four ops, a tiny product, and x plus one."""
    shape = mb.TensorSpec((1, N, 1, 1), dtype=types.fp16)

    @mb.program(input_specs=[shape], opset_version=ct.target.iOS18)
    def built(x):
        ones = np.ones((2, N, 1, 1), np.float16)
        row = mb.reshape(x=x, shape=(1, N))
        return (
            mb.conv(x=x, weight=ones, pad_type="valid", name="conv"),
            mb.linear(x=row, weight=ones[:, :, 0, 0], name="linear"),
            mb.matmul(x=row, y=row, transpose_y=True, name="square"),
            mb.reduce_mean(x=row, axes=[1], name="mean"),
            mb.add(x=x, y=np.float16(1), name="more"),
        )

    path = tmp_path_factory.mktemp("engine") / "sums.mlpackage"
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(built, compute_precision=ct.precision.FLOAT32, **options).save(str(path))
    return path


def both(path, value):
    x = np.full((1, N, 1, 1), value, np.float16)
    return [MLProgram(path, precision=p).predict({"x": x}) for p in ("fp16", "ane")]


def test_a_sum_beyond_the_accumulator_is_lost_where_half_precision_holds_it(path):
    assert find("sum-most").value == LOST  # said there with its sources, and here by itself
    assert N * 500 < LOST < N * 600 < 65504
    half, engine = both(path, 500)
    for name in ("conv", "linear", "mean", "more"):
        np.testing.assert_array_equal(half[name], engine[name])
    half, engine = both(path, 600)
    for name in ("conv", "linear", "mean"):
        assert np.isfinite(half[name]).all() and np.isinf(engine[name]).all(), name
    assert engine["more"][0, 0, 0, 0] == 601


def test_what_is_below_half_a_step_of_the_accumulator_is_lost(path):
    half, engine = both(path, 2.0**-12)  # 64 squares of it are 2^-18
    assert half["square"] == 2.0**-18 and engine["square"] == 0
    half, engine = both(path, 2.0**-11)
    assert half["square"] == engine["square"] == 2.0**-16


@pytest.mark.parametrize("given, read", [(np.nan, 1), (np.inf, 65504), (-np.inf, -65504)])
def test_no_op_reads_what_is_not_finite(path, given, read):
    half, engine = both(path, given)
    assert not np.isfinite(half["more"]).any()
    assert (engine["more"] == np.float16(read)).all()


def test_a_comparison_names_the_op(path):
    x = path.with_name("x.npz")
    np.savez(x, x=np.full((1, N, 1, 1), 600, np.float16))
    half, engine = (compare_packages(path, inputs=x, precision=p)[0] for p in ("fp16", "ane"))
    assert half.endswith("outputs apart: square")  # beyond half precision as well
    assert engine.endswith("outputs apart: conv, linear, square, mean")
    options = ["--run", "--precision", "ane", "--inputs", str(x)]
    result = CliRunner().invoke(app, ["inspect", str(path), *options])
    assert result.exit_code == 0 and "in the engine's arithmetic" in result.output


def test_all_that_sum_are_ops():
    from mlprogram.ops import OPS

    assert OPS.keys() >= SUMS
