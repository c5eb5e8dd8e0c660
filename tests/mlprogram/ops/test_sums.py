"""Products, sums and norms: what they are summed in, and the axes that Apple's tests leave out."""

from itertools import product
from math import prod

from _oracle import FLOATS, close, few, infer, normal, run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from mlprogram.ops import OPS
import numpy as np
import pytest
import torch
from torch.nn import functional as F


@st.composite
def shape_and_axes(draw):
    shape = draw(array_shapes(min_dims=1, max_dims=4, max_side=5))
    axes = st.lists(
        st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda a: a % len(shape)
    )
    return shape, draw(st.none() | axes)


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
    cube = np.arange(24, dtype=np.int32).reshape(2, 3, 4) % 5 + 1
    assert (run("reduce_prod", x=cube, axes=[2, 0]) == cube.prod((0, 2))).all()
    assert run("matmul", x=x, y=np.int32([[1], [1]])).item() == 2 * odd
    assert run("linear", x=x, weight=np.int32([[1, 2]]), bias=np.int32([1])).item() == 3 * odd + 1


@pytest.mark.parametrize("dtype, gamma_dtype", [*product(FLOATS, FLOATS)])
@few
@given(case=shape_and_axes(), scale=st.booleans(), offset=st.booleans())
def test_layer_norm(dtype, gamma_dtype, case, scale, offset):
    shape, axes = case
    x = normal(*shape, dtype=dtype)
    inner = [shape[a] for a in sorted(a % len(shape) for a in axes or range(len(shape)))]
    gamma = normal(*inner, dtype=gamma_dtype) if scale else None
    beta = normal(*inner, dtype=gamma_dtype, seed=1) if offset and scale else None
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    every = list(range(len(shape)))  # coremltools cannot fold its own default of `axes`
    expected = infer("layer_norm", **inputs, axes=axes or every, epsilon=np.float32(1e-3))
    close(run("layer_norm", **inputs, axes=axes, epsilon=1e-3), expected, dtype, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_norm_scales_before_it_shifts(dtype):
    x, gamma, beta, mean = (
        normal(*s, dtype=dtype, seed=i) for i, s in enumerate([(2, 3, 4, 5), *[(3,)] * 3])
    )
    variance = abs(normal(3, dtype=dtype, seed=9)) + dtype(0.1)
    wide = (torch.from_numpy(a).double() for a in (x, mean, variance, gamma, beta))
    inputs = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    expected = F.batch_norm(*wide, eps=1e-3)
    close(run("batch_norm", x=x, **inputs, epsilon=1e-3), expected, dtype, atol=1e-5)


def test_matmul_takes_its_dtype_from_the_declaration_and_leaves_vectors_alone():
    x, y = normal(2, 5, dtype=np.float16), normal(5)
    for out, kind in ((torch.float16, np.float16), (torch.float32, np.float32)):
        result = run("matmul", x=x, y=y, transpose_y=True, _out=[(out, (2,))])
        close(result, x.astype(np.float64) @ y, kind, atol=1e-5)


@few
@given(shape=array_shapes(max_dims=3, max_side=4), named=st.booleans(), seed=st.integers(0, 99))
def test_classify(shape, named, seed):
    order = np.random.default_rng(seed).permutation(prod(shape))
    share = order.astype(np.float32).reshape(shape)
    classes = [f"class {i}" if named else 10 * i for i in range(share.size)]
    label, shares = OPS["classify"].function(torch.from_numpy(share), classes=classes)
    assert label == classes[share.argmax()]
    assert shares == dict(zip(classes, order.tolist(), strict=True))
