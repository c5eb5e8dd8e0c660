"""Products of matrices, and the label of the largest share."""

from math import prod

from _oracle import FLOATS, close, few, infer, normal, run
from ane_book.mil.ops import OPS
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes
import numpy as np
import pytest
import torch


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@few
@given(
    batch=mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3),
    sizes=st.tuples(*[st.integers(1, 6)] * 3),
    swap=st.tuples(st.booleans(), st.booleans()),
)
def test_matmul(dtype, batch, sizes, swap):
    (m, k, n), (swap_x, swap_y) = sizes, swap
    shapes = [(k, m) if swap_x else (m, k), (n, k) if swap_y else (k, n)]
    x, y = (
        (4 * normal(*b, *s)).astype(dtype) for b, s in zip(batch.input_shapes, shapes, strict=True)
    )
    inputs = {"x": x, "y": y, "transpose_x": swap_x, "transpose_y": swap_y}
    close(run("matmul", **inputs), infer("matmul", **inputs), dtype, atol=1e-4)
    close(
        run("matmul", x=x[..., :1, :].reshape(-1)[:1], y=y.reshape(-1)[:1]),
        x.flat[0] * y.flat[0],
        dtype,
    )


def test_matmul_takes_its_dtype_from_the_declaration_and_leaves_vectors_alone():
    x, y = normal(2, 5, dtype=np.float16), normal(5)
    for out, kind in ((torch.float16, np.float16), (torch.float32, np.float32)):
        result = run("matmul", x=x, y=y, transpose_y=True, _out=[(out, (2,))])
        close(result, x.astype(np.float64) @ y, kind, atol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear(shape, dtype):
    x, weight, bias = ((5 * normal(*s)).astype(dtype) for s in (shape, (4, 5), (4,)))
    for b in (bias, None):
        expected = infer("linear", x=x, weight=weight, bias=b)
        close(run("linear", x=x, weight=weight, bias=b), expected, dtype, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("nchw,nwhu->nchu", [(2, 3, 4, 5), (2, 5, 4, 6)]),
        ("bkhq,bqhc->bkhc", [(1, 3, 4, 5), (2, 5, 1, 6)]),
        ("chw,whr->chr", [(3, 4, 5), (5, 1, 6)]),
    ],
)
def test_einsum(equation, shapes, dtype):
    values = [normal(*s, dtype=dtype) for s in shapes]
    wide = [v.astype(np.float64) for v in values]
    expected = np.moveaxis(np.moveaxis(wide[0], -2, -3) @ np.moveaxis(wide[1], -2, -3), -3, -2)
    close(run("einsum", values=values, equation=equation), expected, dtype, atol=1e-5)


@few
@given(shape=array_shapes(max_dims=3, max_side=4), named=st.booleans(), seed=st.integers(0, 99))
def test_classify(shape, named, seed):
    order = np.random.default_rng(seed).permutation(prod(shape))
    share = order.astype(np.float32).reshape(shape)
    classes = [f"class {i}" if named else 10 * i for i in range(share.size)]
    label, shares = OPS["classify"].function(torch.from_numpy(share), classes=classes)
    assert label == classes[share.argmax()]
    assert shares == dict(zip(classes, order.tolist(), strict=True))
