"""Reductions, softmax and norms, and what they are summed in."""

from itertools import product

from _oracle import FLOATS, close, few, infer, normal, run
from ane_book.mil.ops import OPS
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
import numpy as np
import pytest
import torch
from torch.nn import functional as F


@st.composite
def reductions(draw):
    """A shape and what to reduce of it."""
    shape = draw(array_shapes(min_dims=1, max_dims=4, max_side=5))
    axes = st.lists(
        st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda a: a % len(shape)
    )
    return shape, draw(st.none() | axes), draw(st.booleans())


REDUCTIONS = [n for n in OPS if n.startswith("reduce_") and "arg" not in n]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(case=reductions())
def test_reduction(name, dtype, case):
    shape, axes, keep_dims = case
    x = normal(*shape)
    x = (6 * x).astype(dtype) if dtype == np.int32 else x.astype(dtype)
    x = abs(x) + 1 if name == "reduce_log_sum" else x
    if name == "reduce_prod" and dtype == np.int32:
        x = np.sign(x) * 2  # stays below 2^31 for few elements, wraps alike beyond
    inputs = {"x": x, "axes": axes, "keep_dims": keep_dims}
    close(np.asarray(run(name, **inputs)), infer(name, **inputs), dtype, atol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("name", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize("axis, keep_dims", [*product([0, 1, -1], [False, True])])
def test_arg_reduction(name, dtype, axis, keep_dims):
    x = np.random.default_rng(3).permutation(60).reshape(3, 4, 5).astype(dtype)
    inputs = {"axis": axis, "keep_dims": keep_dims}
    expected = infer(name, x=x, **inputs)
    close(run(name, x=x, **inputs), expected, np.int32, 0, 0)
    close(run(name, x=x, **inputs, output_dtype="uint16"), expected, np.uint16, 0, 0)


def test_half_is_summed_in_single_precision():
    ones = np.ones((1, 10000), np.float16)  # summed in half, they stop at 2048
    assert run("reduce_sum", x=ones).item() == 10000
    assert run("reduce_mean", x=ones * np.float16(60000)).item() == 60000
    assert (
        run("reduce_prod", x=np.float16([300, 300, 0.125])).item() == 11250 - 2
    )  # 300 * 300 = inf
    small = ones * np.float16(1e-4)  # whose square is zero in half
    np.testing.assert_allclose(run("reduce_sum_square", x=small), 1e-4, rtol=1e-3)
    assert run("matmul", x=ones, y=ones.T).item() == 10000
    assert run("linear", x=ones, weight=ones).item() == 10000
    assert run("conv", x=ones[..., None], weight=ones[..., None]).item() == 10000
    assert run("conv", x=ones[None], weight=ones[None]).item() == 10000
    assert (
        run("einsum", values=[ones[None], ones.T[:, None]], equation="abc,cbd->abd").item() == 1e4
    )


def test_integers_beyond_single_precision_stay_exact():
    odd = 2**24 + 1  # 2**24 in float32
    x = np.array([[odd, odd]], np.int32)
    assert run("reduce_mean", x=x).item() == odd
    assert run("reduce_sum", x=x).item() == run("reduce_l1_norm", x=-x).item() == 2 * odd
    assert run("matmul", x=x, y=np.int32([[1], [1]])).item() == 2 * odd
    assert run("linear", x=x, weight=np.int32([[1, 2]]), bias=np.int32([1])).item() == 3 * odd + 1


@pytest.mark.parametrize("dtype", FLOATS)
@few
@given(shape=array_shapes(max_dims=4, max_side=6), data=st.data())
def test_softmax(dtype, shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (10 * normal(*shape)).astype(dtype)
    x[x < -15] = -40000  # the book's mask
    close(run("softmax", x=x, axis=axis), infer("softmax", x=x, axis=axis), dtype)


@pytest.mark.parametrize("dtype, gamma_dtype", [*product(FLOATS, FLOATS)])
@few
@given(case=reductions(), scale=st.booleans(), offset=st.booleans())
def test_layer_norm(dtype, gamma_dtype, case, scale, offset):
    shape, axes, _ = case
    x = normal(*shape, dtype=dtype)
    inner = [shape[a] for a in sorted(a % len(shape) for a in axes or range(len(shape)))]
    gamma = normal(*inner, dtype=gamma_dtype) if scale else None
    beta = normal(*inner, dtype=gamma_dtype, seed=1) if offset and scale else None
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    every = list(range(len(shape)))  # coremltools cannot fold its own default of `axes`
    expected = infer("layer_norm", **inputs, axes=axes or every, epsilon=np.float32(1e-3))
    close(run("layer_norm", **inputs, axes=axes, epsilon=1e-3), expected, dtype, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 3, 1, 1)])
def test_norms_over_channels_and_space(shape, dtype):
    x, gamma, beta, mean = (
        normal(*s, dtype=dtype, seed=i) for i, s in enumerate([shape, *[(3,)] * 3])
    )
    variance = abs(normal(3, dtype=dtype, seed=9)) + dtype(0.1)
    wide, g, b, m, v = (torch.from_numpy(a).double() for a in (x, gamma, beta, mean, variance))
    expected = F.batch_norm(wide, m, v, g, b, eps=1e-3)
    both = {"gamma": gamma, "beta": beta, "epsilon": 1e-3}
    result = run("batch_norm", x=x, mean=mean, variance=variance, **both)
    close(result, expected, dtype, atol=1e-5)
    space = tuple(range(2, x.ndim))
    std, centre = torch.std_mean(wide, space, correction=0, keepdim=True)
    channel = [3, *[1] * len(space)]
    expected = (wide - centre) / (std**2 + 1e-3).sqrt() * g.view(channel) + b.view(channel)
    close(run("instance_norm", x=x, **both), expected, dtype, atol=1e-5)
    expected = infer("l2_norm", x=x, epsilon=np.float32(1e-6))
    close(run("l2_norm", x=x), expected, dtype)
    neighbours = [wide[:, max(0, c - 1) : c + 2].square().sum(1) for c in range(3)]
    expected = wide / (2 + 0.5 / 3 * torch.stack(neighbours, 1)) ** 0.6
    close(run("local_response_norm", x=x, size=3, alpha=0.5, beta=0.6, k=2.0), expected, dtype)
