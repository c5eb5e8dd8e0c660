"""Groups of ops that run as one kernel: found where they are, only there, with equal results.

Attention is in `test_fuse.py`.
"""

from _foreign import package as convert
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest
from test_fuse import (
    NUMBERS,
    TYPES,
    assert_close,
    attend,
    attention,
    both,
    build,
    groups,
    number,
    numbers,
)
import torch
from torch import nn

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])


# --- norms ----------------------------------------------------------------------------------------


def pair(x, axis, weight, sign=-1.0):
    """The first half of the layer norm of [x, -x]."""
    both_ = mb.concat(values=[x, mb.mul(x=x, y=number(x, sign))], axis=axis)
    normal = mb.layer_norm(x=both_, axes=[axis], epsilon=number(x, 1e-5))
    y = mb.slice_by_index(x=normal, begin=[0] * x.rank, end=list(x.shape))
    return y if weight is None else mb.mul(x=y, y=number(x, weight))


def root(x, axis, weight, inner=None):
    wide = mb.cast(x=x, dtype=inner) if inner else x
    square = mb.pow(x=wide, y=number(wide, 2))
    mean = mb.reduce_mean(x=square, axes=[axis], keep_dims=True)
    y = mb.mul(x=wide, y=mb.rsqrt(x=mb.add(x=mean, y=number(wide, 1e-5))))
    y = mb.cast(x=y, dtype="fp16") if inner else y
    return mb.mul(x=number(y, weight), y=y)


def casts(x, axis, weight):
    return root(x, axis, weight, inner="fp32")


def halves(x, axis, weight):
    """0seba: x and -x joined at the channels, moved to the end and back, and split."""
    both_ = mb.concat(values=[x, mb.mul(x=x, y=number(x, -1))], axis=axis)
    moved = mb.transpose(x=both_, perm=[0, 2, 3, 1])
    normal = mb.layer_norm(x=moved, axes=[-1], epsilon=number(x, 1e-5))
    y = mb.split(x=mb.transpose(x=normal, perm=[0, 3, 1, 2]), num_splits=2, axis=axis)[0]
    return mb.mul(x=y, y=number(x, weight))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form, weighted, shape, axis", [
    (pair, True, (1, 48, 1, 1), 1), (pair, False, (1, 48, 1, 21), 1), (pair, False, (2, 5, 40), 2),
    (pair, True, (2, 5, 40), 2), (pair, True, (1, 80, 1, 300), 1), (root, True, (1, 5, 48), 2),
    (root, True, (1, 80, 1, 21), 1), (casts, True, (1, 5, 48), -1),
    (halves, True, (1, 48, 1, 21), 1),
])  # fmt: skip
def test_norms_are_those_of_their_ops(tmp_path, dtype, form, weighted, shape, axis):
    if form is casts and dtype == "fp32":
        pytest.skip("casts are from half precision")
    aligned = [n if i == axis % len(shape) else 1 for i, n in enumerate(shape)]
    weight = np.random.default_rng(1).standard_normal(aligned) if weighted else None
    specs = {"x": (shape, dtype)}
    path = build(specs, lambda x: form(x, axis, weight), tmp_path / "n.mlpackage")
    assert groups(path) == ["rms_norm" if form in (pair, halves) else "rms_norm_spelled_out"]
    inputs, ulps = numbers(specs), 2 if dtype == "fp16" else 8
    for scale in (1, 0.001):
        fused, plain = both(path, dtype, {"x": inputs["x"] * NUMBERS[dtype](scale)})
        assert_close(fused, plain, ulps, dtype)
        if form is pair and scale == 1:
            x = inputs["x"].astype(np.float64)
            exact = x / np.sqrt((x**2).mean(axis, keepdims=True) + 1e-5)
            exact = exact if weight is None else exact * weight.astype(NUMBERS[dtype])
            assert_close(fused, exact, ulps, dtype)
    if form in (root, casts):  # squares beyond half precision are infinite, in the kernel too
        fused, plain = both(path, dtype, {"x": inputs["x"] * NUMBERS[dtype](1000)})
        np.testing.assert_allclose(fused, plain, rtol=2e-3, atol=1e-3)
        assert (np.abs(plain).max() == 0) == (form is root and dtype == "fp16")


# --- gates and rotations --------------------------------------------------------------------------


def gated(gate, x):
    return mb.mul(x=x, y=mb.silu(x=gate))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 7), (1, 96, 1, 1), (1, 200, 1, 64)])
def test_gates_are_those_of_their_ops(tmp_path, dtype, shape):
    specs = {"gate": (shape, dtype), "x": (shape, dtype)}
    path = build(specs, gated, tmp_path / "g.mlpackage")
    assert groups(path) == ["gated"]
    inputs = numbers(specs)
    inputs["gate"] *= 8
    inputs["gate"].flat[:4] = [-100, 100, 0, -11]
    fused, plain = both(path, dtype, inputs)
    assert_close(fused, plain, 1 if dtype == "fp16" else 4, dtype)


def turning(axis, sliced=False, negated=True, sizes=(20, 20)):
    """x cos + [-x2, x1] sin."""

    def turn(x, cos, sin):
        if sliced:
            end, begin = [*x.shape], [0] * x.rank
            end[axis] = begin[axis] = sizes[0]
            first = mb.slice_by_index(x=x, begin=[0] * x.rank, end=end)
            second = mb.slice_by_index(x=x, begin=begin, end=x.shape)
        else:
            even = {"num_splits": 2} if sizes[0] == sizes[1] else {"split_sizes": sizes}
            first, second = mb.split(x=x, **even, axis=axis)
        second = mb.mul(x=second, y=number(x, -1)) if negated else second
        crossed = mb.mul(x=mb.concat(values=[second, first], axis=axis), y=sin)
        return mb.add(x=mb.mul(x=cos, y=x), y=crossed)

    return turn


def joining(axis):
    """x1 cos - x2 sin and x2 cos + x1 sin, of tables for a half."""

    def turn(x, cos, sin):
        a, b = mb.split(x=x, num_splits=2, axis=axis)
        first = mb.sub(x=mb.mul(x=a, y=cos), y=mb.mul(x=b, y=sin))
        second = mb.add(x=mb.mul(x=b, y=cos), y=mb.mul(x=a, y=sin))
        return mb.concat(values=[first, second], axis=axis)

    return turn


@pytest.mark.parametrize("dtype, shape, table, body, group", [
    ("fp16", (1, 3, 5, 40), (1, 5, 40), turning(-1), True),
    ("fp32", (1, 3, 1, 40), (1, 1, 40), turning(-1, sliced=True), True),
    ("fp32", (1, 3, 40, 5), (1, 40, 5), turning(-2), True),
    ("fp16", (1, 3, 1, 40), (1, 1, 40), turning(-1, negated=False), True),
    ("fp32", (1, 3, 5, 40), (1, 5, 40), turning(3, sliced=True, negated=False), True),
    ("fp16", (1, 3, 40, 1), (1, 40, 1), turning(2, sliced=True), True),
    ("fp16", (1, 3, 5, 40), (1, 5, 20), joining(-1), True),
    ("fp32", (1, 3, 40, 1), (1, 20, 1), joining(-2), True),
    ("fp16", (3, 40, 1, 5), (1, 20, 1, 5), joining(1), True),
    ("fp16", (1, 3, 5, 40), (1, 3, 5, 40), turning(-1), False),  # a table for each head
])  # fmt: skip
def test_rotations_are_those_of_their_ops(tmp_path, dtype, shape, table, body, group):
    specs = {"x": (shape, dtype), "cos": (table, dtype), "sin": (table, dtype)}
    path = build(specs, body, tmp_path / "r.mlpackage")
    assert not group or groups(path) == ["rotary"]
    inputs = numbers(specs)
    inputs["x"].flat[:3] = [0, np.inf, np.nan]
    fused, plain = both(path, dtype, inputs)
    np.testing.assert_array_equal(np.isfinite(fused), np.isfinite(plain))
    exactness = {"rtol": 0 if dtype == "fp16" else 1e-6, "atol": 1e-6 if group else 0}
    np.testing.assert_allclose(fused, plain, **exactness)


@pytest.mark.parametrize("dtype", TYPES)
def test_an_einsum_of_a_part_of_what_is_turned_is_that_of_the_op(tmp_path, dtype):
    specs = {"x": ((1, 150, 4, 40), dtype), "y": ((1, 150, 2, 17), dtype)}

    def body(x, y):
        part = mb.split(x=mb.transpose(x=x, perm=[0, 3, 2, 1]), num_splits=2, axis=2)[1]
        return mb.einsum(values=[part, y], equation="bchw,bwhu->bchu")

    path = build(specs, body, tmp_path / "e.mlpackage")
    assert "einsum" in [step.kernel for step in MLProgram(path).plan.main.steps]
    compiled, plain = both(path, dtype, numbers(specs))
    exactness = 5e-3 if dtype == "fp16" else 2e-5
    np.testing.assert_allclose(compiled, plain, rtol=exactness, atol=exactness)


# --- what is no group -----------------------------------------------------------------------------


def other_axis(q, mask, k, v):
    scores = mb.add(x=mb.matmul(x=q, y=k, transpose_y=True), y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-2), y=v)


def gate_of_itself(gate):
    """It would read the silu that the group does not make."""
    opened = mb.silu(x=gate)
    return mb.mul(x=opened, y=opened)


SQUARE = {k: shape for k, (shape, _) in attention(attend, "fp32", 16, [16], 16).items()}
TURNED = {"x": (1, 3, 5, 40), "cos": (1, 5, 40), "sin": (1, 5, 40)}
LOOKS = {
    "weights that are read": (lambda *inputs: attend(*inputs, see=True), SQUARE),
    "another axis": (other_axis, SQUARE),
    "no pair": (lambda x: pair(x, 1, None, sign=-2.0), {"x": (1, 48, 1, 4)}),
    "another shape": (gated, {"gate": (4, 8), "x": (1, 8)}),
    "itself": (gate_of_itself, {"gate": (4, 8)}),
    "no halves": (turning(-1, negated=False, sizes=(10, 30)), TURNED),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_what_only_looks_like_a_group_is_its_ops(tmp_path, kind):
    body, shapes = LOOKS[kind]
    specs = {name: (shape, "fp32") for name, shape in shapes.items()}
    assert groups(build(specs, body, tmp_path / "p.mlpackage")) == []


class Block(nn.Module):
    def forward(self, x, mask):  # (1, T, 2 * 32), (1, 1, T, T)
        x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        heads = x.view(1, -1, 2, 32).transpose(1, 2)
        scores = heads @ heads.transpose(-1, -2) * 0.125 + mask
        y = (scores.softmax(-1) @ heads).transpose(1, 2).reshape(1, -1, 64)
        return nn.functional.silu(y) * x


def test_sizes_that_a_program_leaves_open(tmp_path):
    """Attention, norm and gate look at the sizes of each call."""
    length = ct.RangeDim(1, 64, default=7)
    inputs = [ct.TensorType("x", (1, length, 64)), ct.TensorType("mask", (1, 1, length, length))]
    example = torch.zeros(1, 7, 64), torch.zeros(1, 1, 7, 7)
    path = convert(Block(), tmp_path / "open.mlpackage", example, inputs=inputs)
    assert sorted(groups(path)) == ["attention", "gated", "rms_norm_spelled_out"]
    for count in (1, 7, 30):
        random = np.random.default_rng(count)
        given = {
            "x": random.standard_normal((1, count, 64)).astype(np.float32),
            "mask": np.triu(np.full((1, 1, count, count), -40000, np.float32), 1),
        }
        for precision in ("fp16", "fp32"):
            fused, plain = both(path, precision, given)
            assert_close(fused, plain, 4 if precision == "fp16" else 32, "fp16")
