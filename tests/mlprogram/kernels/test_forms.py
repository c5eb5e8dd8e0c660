"""Attention and norms as other converters write them: fused, with the results of their ops."""

from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest
from test_fuse import NUMBERS, assert_close, both, build, groups, masks, numbers

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

HEADS, SLOTS, DEPTH = 4, 50, 32


def repeat(x):
    """Each head twice, as `repeat` of an axis in between makes it."""
    _, heads, slots, depth = x.shape
    x = mb.tile(x=mb.expand_dims(x=x, axes=[2]), reps=[1, 1, 2, 1, 1])
    return mb.reshape(x=x, shape=[1, heads * 2, slots, depth])


def interleave(x):
    """The same as `repeat_interleave` of torch.export makes it."""
    _, heads, slots, depth = x.shape
    x = mb.tile(x=mb.transpose(x=x, perm=[1, 0, 2, 3]), reps=[2, 1, 1, 1])
    x = mb.transpose(x=mb.reshape(x=x, shape=[2, heads, 1, slots, depth]), perm=[1, 0, 2, 3, 4])
    x = mb.reshape(x=x, shape=[heads * 2, 1, slots, depth])
    return mb.transpose(x=x, perm=[1, 0, 2, 3])


def softmax(x):
    raised = mb.exp(x=mb.sub(x=x, y=mb.reduce_max(x=x, axes=[-1], keep_dims=True)))
    return mb.real_div(x=raised, y=mb.reduce_sum(x=raised, axes=[-1], keep_dims=True))


def number(like, value):
    return value.astype(np.float16 if like.dtype == types.fp16 else np.float32)


def spelled_out(q, mask, k, v):
    """ANEMLL."""
    scores = mb.matmul(x=q, y=repeat(k), transpose_y=True)
    scores = mb.mul(x=scores, y=number(q, np.float32(0.125)))
    return mb.matmul(x=softmax(mb.add(x=scores, y=mask)), y=repeat(v))


def by_columns(q, mask, k, v):
    """0seba: the heads that share a key head, one such group after the other."""
    columns, mask = mb.transpose(x=q, perm=[0, 1, 3, 2]), mb.transpose(x=mask, perm=[0, 1, 3, 2])
    parts = [mb.split(x=x, num_splits=HEADS // 2, axis=1) for x in (columns, k, v)]
    found = []
    for q_, k_, v_ in zip(*parts, strict=True):
        scores = mb.mul(x=mb.matmul(x=k_, y=q_), y=number(q, np.float32(0.125)))
        weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=2)
        found.append(mb.matmul(x=weights, y=v_, transpose_x=True))
    return mb.concat(values=found, axis=1)


def broadcast(q, mask, k, v):
    q = mb.reshape(x=q, shape=[1, HEADS // 2, 2, q.shape[2], DEPTH])
    k, v = (mb.expand_dims(x=x, axes=[2]) for x in (k, v))
    scores = mb.matmul(x=q, y=k, transpose_y=True)
    scores = mb.real_div(x=scores, y=number(q, np.float32(8)))
    y = mb.matmul(x=mb.softmax(x=mb.add(x=mask, y=scores), axis=-1), y=v)
    return mb.reshape(x=y, shape=[1, HEADS, q.shape[3], DEPTH])


def one_op(q, mask, k, v):
    """torch.export, and the recipe of Apple's."""
    return mb.scaled_dot_product_attention(
        query=q, key=interleave(k), value=interleave(v), attn_mask=mask
    )


FORMS = [spelled_out, by_columns, broadcast, one_op]


def operands(dtype: str, rows: int) -> dict:
    key = (1, HEADS // 2, SLOTS, DEPTH)
    shapes = {"q": (1, HEADS, rows, DEPTH), "mask": (1, 1, rows, SLOTS), "k": key, "v": key}
    return {name: (shape, dtype) for name, shape in shapes.items()}


@pytest.fixture(scope="module", params=[2, 20], ids="{} rows".format)
def rows(request):
    return request.param


@pytest.fixture(scope="module", params=NUMBERS)
def dtype(request):
    return request.param


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: form.__name__)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def package(form, dtype, rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp(form.__name__)
    return build(operands(dtype, rows), form, folder / "a.mlpackage")


class TestAttention:
    def test_is_that_of_its_ops(self, package, form, dtype, rows):
        assert groups(package) == ["attention"] * (2 if form is by_columns else 1)
        kernels = [
            step.kernel for step in MLProgram(package, without=["attention"]).plan.main.steps
        ]
        assert "attention" not in kernels
        inputs = numbers(operands(dtype, rows))
        scale = DEPTH**-0.5 if form is one_op else 0.125
        for mask in masks(rows, SLOTS):
            inputs["mask"] = mask.astype(NUMBERS[dtype])
            fused, plain = both(package, dtype, inputs)
            assert_close(fused, plain, ulps=2 if dtype == "fp16" else 16, dtype=dtype)
            wide = {name: value.astype(np.float64) for name, value in inputs.items()}
            keys, values = (np.repeat(wide[name], 2, axis=1) for name in "kv")
            scores = wide["q"] @ keys.swapaxes(-1, -2) * scale + wide["mask"]
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            exact = weights / weights.sum(-1, keepdims=True) @ values
            assert_close(fused, exact, ulps=6 if dtype == "fp16" else 32, dtype=dtype)

    def test_closed_slots_win_where_open_ones_score_less(self, package, form, dtype, rows):
        """Of one row of the last head; the closed ones hold nothing but take from the sum."""
        inputs = {n: np.zeros(s, NUMBERS[dtype]) for n, (s, _) in operands(dtype, rows).items()}
        inputs["mask"][..., 16:48] = -40000
        inputs["k"][..., :16, 0] = inputs["k"][..., 48:, 0] = -16 / 0.125
        if form is one_op:
            inputs["k"] *= inputs["k"].dtype.type(0.125 * DEPTH**0.5)
        inputs["v"][..., :16, :] = inputs["v"][..., 48:, :] = 1
        for score in (-40032, -40000, -39968):
            inputs["q"][:, -1, rows - 1, 0] = -score / 16
            fused, plain = both(package, dtype, inputs)
            assert plain[0, 0, 0, 0] == pytest.approx(1, rel=1e-3)
            np.testing.assert_allclose(fused, plain, rtol=2e-3)

    def test_a_row_that_is_closed_altogether(self, package, form, dtype, rows):
        """To the least number the mean is left; to minus infinity NaN, or 0 of the one op."""
        inputs = numbers(operands(dtype, rows))
        inputs["q"] *= inputs["q"].dtype.type(0.01)
        for closed in (np.finfo(NUMBERS[dtype]).min, -np.inf):
            inputs["mask"][...] = 0
            inputs["mask"][..., 1, :] = closed
            fused, plain = both(package, dtype, inputs)
            np.testing.assert_allclose(fused, plain, rtol=2e-3, atol=2e-3)
        assert np.isnan(plain[:, :, 1]).all() or (form is one_op and not plain[:, :, 1].any())


class TestNorm:
    @staticmethod
    def root(x, axis, weight, inner=None):
        wide = mb.cast(x=x, dtype=inner) if inner else x
        square = mb.pow(x=wide, y=number(wide, np.float32(2)))
        mean = mb.reduce_mean(x=square, axes=[axis], keep_dims=True)
        root = mb.rsqrt(x=mb.add(x=mean, y=number(wide, np.float32(1e-5))))
        y = mb.mul(x=wide, y=root)
        y = mb.cast(x=y, dtype="fp16") if inner else y
        return mb.mul(x=number(y, weight), y=y)

    @staticmethod
    def halves(x, axis, weight):
        """0seba: x and -x joined at the channels, moved to the end and back, and split."""
        half = number(x, np.float32(-1))
        pair = mb.concat(values=[x, mb.mul(x=x, y=half)], axis=axis)
        moved = mb.transpose(x=pair, perm=[0, 2, 3, 1])
        normal = mb.layer_norm(x=moved, axes=[-1], epsilon=number(x, np.float32(1e-5)))
        y = mb.split(x=mb.transpose(x=normal, perm=[0, 3, 1, 2]), num_splits=2, axis=axis)[0]
        return mb.mul(x=y, y=number(x, weight))

    @pytest.mark.parametrize("dtype", NUMBERS)
    @pytest.mark.parametrize("form, shape, axis", [
        ("root", (1, 5, 48), 2), ("root", (1, 80, 1, 21), 1), ("casts", (1, 5, 48), -1),
        ("halves", (1, 48, 1, 21), 1),
    ])  # fmt: skip
    def test_is_that_of_its_ops(self, tmp_path, dtype, form, shape, axis):
        if form == "casts" and dtype == "fp32":
            pytest.skip("casts are from half precision")
        aligned = [n if i == axis % len(shape) else 1 for i, n in enumerate(shape)]
        weight = np.random.default_rng(1).standard_normal(aligned)
        makers = {
            "root": lambda x: self.root(x, axis, weight),
            "casts": lambda x: self.root(x, axis, weight, inner="fp32"),
            "halves": lambda x: self.halves(x, axis, weight),
        }
        specs = {"x": (shape, dtype)}
        path = build(specs, makers[form], tmp_path / "n.mlpackage")
        assert groups(path) == ["rms_norm" if form == "halves" else "rms_norm_spelled_out"]
        inputs = numbers(specs)
        for scale in (1, 0.001):
            given = {"x": inputs["x"] * NUMBERS[dtype](scale)}
            fused, plain = both(path, dtype, given)
            assert_close(fused, plain, 2 if dtype == "fp16" else 8, dtype)
        if form != "halves":  # squares beyond half precision are infinite, in the kernel too
            given = {"x": inputs["x"] * NUMBERS[dtype](1000)}
            fused, plain = both(path, dtype, given)
            np.testing.assert_allclose(fused, plain, rtol=2e-3, atol=1e-3)
            assert (np.abs(plain).max() == 0) == (form == "root" and dtype == "fp16")


class TestRotary:
    @staticmethod
    def body(axis, sliced, negated):
        def turn(x, cos, sin):
            shape, size = [*x.shape], x.shape[axis] // 2
            if sliced:
                end, begin = [*shape], [0] * len(shape)
                end[axis] = begin[axis] = size
                first = mb.slice_by_index(x=x, begin=[0] * len(shape), end=end)
                second = mb.slice_by_index(x=x, begin=begin, end=shape)
            else:
                first, second = mb.split(x=x, num_splits=2, axis=axis)
            if negated:
                second = mb.mul(x=second, y=number(x, np.float32(-1)))
            crossed = mb.mul(x=mb.concat(values=[second, first], axis=axis), y=sin)
            return mb.add(x=mb.mul(x=cos, y=x), y=crossed)

        return turn

    @pytest.mark.parametrize("dtype, axis, sliced, negated, tokens", [
        ("fp16", -1, False, True, 5), ("fp32", -1, True, True, 1), ("fp32", -2, False, True, 5),
        ("fp16", -1, False, False, 1), ("fp32", 3, True, False, 5), ("fp16", 2, True, True, 1),
    ])  # fmt: skip
    def test_is_that_of_its_ops(self, tmp_path, dtype, axis, sliced, negated, tokens):
        last = (40, tokens) if axis in (2, -2) else (tokens, 40)
        specs = {"x": ((1, 3, *last), dtype), "cos": (last, dtype), "sin": ((1, *last), dtype)}
        specs["cos"] = specs["sin"]
        path = build(specs, self.body(axis, sliced, negated), tmp_path / "r.mlpackage")
        assert groups(path) == ["rotary"]
        inputs = numbers(specs)
        inputs["x"].flat[:3] = [0, np.inf, np.nan]
        fused, plain = both(path, dtype, inputs)
        np.testing.assert_array_equal(np.isfinite(fused), np.isfinite(plain))
        np.testing.assert_allclose(fused, plain, rtol=0 if dtype == "fp16" else 1e-6, atol=1e-6)

    @pytest.mark.parametrize(
        "dtype, axis, tokens", [("fp16", -1, 5), ("fp32", -2, 1), ("fp16", 1, 5)]
    )
    def test_halves_that_are_joined(self, tmp_path, dtype, axis, tokens):
        """x1 cos - x2 sin and x2 cos + x1 sin, of tables for a half."""
        shape = {-1: (1, 3, tokens, 40), -2: (1, 3, 40, tokens), 1: (3, 40, 1, tokens)}[axis]
        half = [20 if n == 40 else n for n in shape[1:]]
        half = half if axis == 1 else half[1:]
        specs = {"x": (shape, dtype), "cos": ((1, *half), dtype), "sin": ((1, *half), dtype)}

        def turn(x, cos, sin):
            a, b = mb.split(x=x, num_splits=2, axis=axis)
            first = mb.sub(x=mb.mul(x=a, y=cos), y=mb.mul(x=b, y=sin))
            second = mb.add(x=mb.mul(x=b, y=cos), y=mb.mul(x=a, y=sin))
            return mb.concat(values=[first, second], axis=axis)

        path = build(specs, turn, tmp_path / "r.mlpackage")
        assert groups(path) == ["rotary"]
        fused, plain = both(path, dtype, numbers(specs))
        np.testing.assert_allclose(fused, plain, rtol=0 if dtype == "fp16" else 1e-6, atol=1e-6)

    def test_tables_for_each_head_are_ops(self, tmp_path):
        """And so is what trades places that are no halves."""
        shape = (1, 3, 5, 40)
        specs = {name: (shape, "fp16") for name in ("x", "cos", "sin")}
        path = build(specs, self.body(-1, False, True), tmp_path / "r.mlpackage")
        fused, plain = both(path, "fp16", numbers(specs))
        np.testing.assert_array_equal(fused, plain)

        def other(x, cos, sin):
            parts = mb.split(x=x, split_sizes=[10, 30], axis=-1)
            crossed = mb.mul(x=mb.concat(values=parts[::-1], axis=-1), y=sin)
            return mb.add(x=mb.mul(x=x, y=cos), y=crossed)

        assert groups(build(specs, other, tmp_path / "o.mlpackage")) == []


class TestEinsum:
    @pytest.mark.parametrize("dtype", NUMBERS)
    @pytest.mark.parametrize("turned", [False, True])
    @pytest.mark.parametrize(
        "columns, sizes", [(17, (40, 2, 150)), (70, (1, 3, 5)), (3, (7, 2, 1))]
    )
    def test_is_that_of_the_op(self, tmp_path, dtype, columns, turned, sizes):
        """Also of a part of a value, and of one whose axes trade places."""
        C, H, W = sizes
        shape = (1, W, 2 * H, C) if turned else (1, C, 2 * H, W)
        specs = {"x": (shape, dtype), "y": ((1, W, H, columns), dtype)}

        def body(x, y):
            x = mb.transpose(x=x, perm=[0, 3, 2, 1]) if turned else x
            part = mb.split(x=x, num_splits=2, axis=2)[1]
            return mb.einsum(values=[part, y], equation="bchw,bwhu->bchu")

        path = build(specs, body, tmp_path / "e.mlpackage")
        assert "einsum" in [step.kernel for step in MLProgram(path).plan.main.steps]
        compiled, plain = both(path, dtype, numbers(specs))
        exactness = 5e-3 if dtype == "fp16" else 2e-5
        np.testing.assert_allclose(compiled, plain, rtol=exactness, atol=exactness)


def test_sizes_that_a_program_leaves_open(tmp_path):
    """Attention, norm and gate look at the sizes of each call."""
    from _foreign import package as convert
    import coremltools as ct
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x, mask):  # (1, T, 2 * 32), (1, 1, T, T)
            x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
            heads = x.view(1, -1, 2, 32).transpose(1, 2)
            scores = heads @ heads.transpose(-1, -2) * 0.125 + mask
            y = (scores.softmax(-1) @ heads).transpose(1, 2).reshape(1, -1, 64)
            return nn.functional.silu(y) * x

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
