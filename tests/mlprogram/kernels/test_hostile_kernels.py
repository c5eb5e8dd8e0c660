"""Programs that lie to the compiled kernels, which read memory by addresses.

What a kernel or a fused group takes for granted is declared by the package, and so has to be
checked: each program here is refused, or gives what the plain ops give.
"""

import itertools

from _package import const, op, refused, run, typed, write
from mlprogram import MLProgram
from mlprogram.errors import InvalidPackage, MLProgramError
from mlprogram.kernels import native
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

RANDOM = np.random.default_rng(0)


@pytest.fixture
def make(tmp_path):
    """`make(operations, inputs={name: shape}, ...)` writes a package with inputs of fp32."""
    count = itertools.count()

    def make(operations, inputs, outputs=("y",)):
        types = {name: typed("fp32", *shape) for name, shape in inputs.items()}
        return write(tmp_path / f"{next(count)}.mlpackage", operations, outputs, types)

    return make


def arrays(inputs):
    return {k: RANDOM.standard_normal(shape).astype(np.float32) for k, shape in inputs.items()}


def same(path, inputs):
    """The package runs, and every shortcut gives what the plain ops give."""
    given = arrays(inputs)
    found, plain = run(path, given), run(path, given, optimize=False)
    np.testing.assert_allclose(found["y"], plain["y"], rtol=1e-4, atol=1e-5)


def refused_or_same(path, given):
    """Where the plain ops refuse, so do the shortcuts; where they run, the results are the same."""
    try:
        plain = run(path, given, optimize=False)
    except MLProgramError:
        refused(path, "op '|output 'y'", inputs=given)
    else:
        np.testing.assert_allclose(run(path, given)["y"], plain["y"], rtol=1e-4, atol=1e-5)


def fused(path):
    """How many groups of ops run as one."""
    source = MLProgram(path).compiled.source
    return len(MLProgram(path).operations) - source.count(" = c")


def attention(scores, split=None, **extra):
    """softmax(q K^T + mask) V, whose scores are declared as the test says."""
    weights = typed("fp32", *scores)
    return [
        op("matmul", {"s": weights}, x="q", y="k", transpose_y=const(True)),
        op("add", {"m": weights}, x="s", y="mask"),
        op("softmax", {"w": weights, **extra}, x="m", axis=const(-1)),
        op("matmul", {"y": typed("fp32", *scores[:-1], 16)}, x="w", y="v"),
    ]


ATTENTION = {"q": (1, 2, 3, 16), "k": (1, 2, 40, 16), "v": (1, 2, 40, 16), "mask": (1, 1, 3, 40)}


class TestAttention:
    def test_the_group_is_one(self, make):
        path = make(attention((1, 2, 3, 40)), ATTENTION)
        assert fused(path) == 3
        same(path, ATTENTION)

    @pytest.mark.parametrize(
        ("scores", "mask"),
        [((1, 2, 3, 8), (1, 1, 3, 8)), ((1, 2, 3, 80), (1, 1, 3, 80)),
         ((1, 2, 2, 40), (1, 1, 2, 40)), ((1, 2, 6, 40), (1, 1, 6, 40))],
    )  # fmt: skip
    def test_a_mask_of_other_slots_or_rows(self, make, scores, mask):
        inputs = ATTENTION | {"mask": mask}
        refused(make(attention(scores), inputs), "op 'add'", inputs=arrays(inputs))

    @pytest.mark.parametrize("name", ["k", "v"])
    def test_values_of_another_size(self, make, name):
        for shape in [(1, 2, 39, 16), (1, 1, 40, 16), (1, 2, 40, 8), (40, 16), (16,)]:
            inputs = ATTENTION | {name: shape}
            path = make(attention((1, 2, 3, 40)), inputs)
            given = arrays(inputs)
            refused_or_same(path, given)

    def test_slots_that_no_stack_holds(self, make):
        slots = 1 << 22
        inputs = {"q": (1, 1, 1, 1), "k": (1, 1, slots, 1), "v": (1, 1, slots, 1),
                  "mask": (1, 1, 1, slots)}  # fmt: skip
        operations = attention((1, 1, 1, slots))
        operations[-1].outputs[0].type.CopyFrom(typed("fp32", 1, 1, 1, 1))
        same(make(operations, inputs), inputs)

    def test_a_second_output(self, make):
        path = make(attention((1, 2, 3, 40), z=typed("fp32", 1)), ATTENTION, ["y", "z"])
        refused(path, "op 'softmax'", inputs=arrays(ATTENTION))

    @pytest.mark.parametrize(("axis", "sizes"), [(-1, [30, 10]), (-2, [2, 1]), (3, [10, 30])])
    def test_parts_that_are_split_otherwise(self, make, axis, sizes):
        """Keys in two parts of 30 and 10 slots, and what the ops declare of them is right."""
        part = {"a": typed("fp32", 1, 2, 3, 30), "b": typed("fp32", 1, 2, 3, 10)}
        shapes = {"k1": (1, 2, 30, 16), "k2": (1, 2, 10, 16)}
        inputs = {"q": (1, 2, 3, 16), "mask": (1, 1, 1, 40), **shapes}
        scores, out = typed("fp32", 1, 2, 3, 40), typed("fp32", 1, 2, 3, 16)
        operations = [
            op("matmul", {"s1": part["a"]}, x="q", y="k1", transpose_y=const(True)),
            op("matmul", {"s2": part["b"]}, x="q", y="k2", transpose_y=const(True)),
            op("concat", {"s": scores}, values=["s1", "s2"], axis=const(-1)),
            op("add", {"m": scores}, x="s", y="mask"),
            op("softmax", {"w": scores}, x="m", axis=const(-1)),
            op("split", part, x="w", axis=const(axis), split_sizes=const(sizes)),
            op("matmul", {"y1": out}, x="a", y="k1"),
            op("matmul", {"y2": out}, x="b", y="k2"),
            op("add", {"y": out}, x="y1", y="y2"),
        ]
        path = make(operations, inputs)
        if sizes == [30, 10]:
            assert fused(path) == 8
            same(path, inputs)
        else:
            refused(path, "op 'matmul'", inputs=arrays(inputs))


def rms_norm(end=(2, 8), begin=(0, 0), weight=8, declared=(2, 8), **extra):
    """The first half of the layer norm of [x, -x], times a weight."""
    x, both, half = typed("fp32", 2, 8), typed("fp32", 2, 16), typed("fp32", *declared)
    factor = const(np.linspace(1, 2, weight, dtype=np.float32).reshape(1, -1))
    return [
        op("mul", {"n": x}, x="x", y=const(-1.0)),
        op("concat", {"d": both}, values=["x", "n"], axis=const(1)),
        op("layer_norm", {"l": both}, x="d", axes=const([1]), epsilon=const(1e-5)),
        op("slice_by_index", {"h": half}, x="l", begin=const([*begin]), end=const([*end]), **extra),
        op("mul", {"y": half}, x="h", y=factor),
    ]


class TestNorms:
    X: dict = {"x": (2, 8)}  # noqa: RUF012

    def test_the_group_is_one(self, make):
        path = make(rms_norm(), self.X)
        assert fused(path) == 4
        same(path, self.X)

    @pytest.mark.parametrize(
        "lie",
        [{"end": (2, 9)}, {"begin": (0, 8), "end": (2, 16)}, {"begin": (1, 0)}, {"weight": 1},
         {"end": (2, 16), "stride": const([1, 2])}, {"end_mask": const([True, True])},
         {"end": (2, 9), "declared": (2, 9), "weight": 9}, {"end": (2,), "begin": (0,)},
         {"squeeze_mask": const([True, False])}, {"begin_mask": const([False, True])}],
    )  # fmt: skip
    def test_a_slice_that_is_not_the_first_half(self, make, lie):
        path, given = make(rms_norm(**lie), self.X), arrays(self.X)
        refused_or_same(path, given)

    def test_x_is_not_what_was_declared(self, make):
        """Found by fuzzing: the error of a group of ops looked for the group in the program."""
        reshape = op("reshape", {"x": typed("fp32", 2, 8)}, x="z", shape=const([4, 4]))
        inputs = {"z": (16,)}
        path = make([reshape, *rms_norm()], inputs)
        with pytest.raises(InvalidPackage, match=r"ops that run as one 'rms_norm' \('y'\) cannot"):
            run(path, arrays(inputs))

    @pytest.mark.parametrize("shape", [(1, 8), (4,), (16,), (8, 1)])
    @pytest.mark.parametrize("key", ["gamma", "beta"])
    def test_factors_of_another_shape(self, make, key, shape):
        factors = {"gamma": (8,), "beta": (8,)} | {key: shape}
        given = {name: const(np.ones(size, np.float32)) for name, size in factors.items()}
        norm = op("layer_norm", {"y": typed("fp32", 2, 8)}, x="x", axes=const([1]), **given)
        refused(make([norm], self.X), "op 'layer_norm'", inputs=arrays(self.X))

    def test_x_stands_in_the_op(self, make):
        ones = const(np.ones((2, 8), np.float32))
        for kind, extra in [("softmax", {"axis": const(-1)}), ("layer_norm", {"axes": const([1])})]:
            path = make([op(kind, {"y": typed("fp32", 2, 8)}, x=ones, **extra)], self.X)
            same(path, self.X)


class TestProducts:
    X: dict = {"x": (1, 32, 1, 4)}  # noqa: RUF012

    def conv(self, weight, tokens=4, **extra):
        return op("conv", {"y": typed("fp32", 1, 32, 1, tokens)}, x="x", weight=weight, **extra)

    def scaled(self, data, scale):
        data = const(RANDOM.integers(-9, 9, data).astype(np.int32), "int8")
        return op(
            "constexpr_blockwise_shift_scale", {"w": typed("fp32", 32, 32, 1, 1)},
            data=data, scale=const(np.ones(scale, np.float32)),
        )  # fmt: skip

    def test_no_tokens(self, make):
        """Found by fuzzing: the plain convolution refused x of size 0."""
        weight = const(RANDOM.standard_normal((32, 32, 1, 1)).astype(np.float32))
        path = make([self.conv(weight, tokens=0)], empty := {"x": (1, 32, 1, 0)})
        same(path, empty)

    @pytest.mark.parametrize(
        ("data", "scale"),
        [((64, 16, 1, 1), (32, 1, 1, 1)), ((1024, 1, 1, 1), (32, 1, 1, 1)),
         ((32, 32), (32, 1)), ((32, 32, 1, 1), (32,)), ((32, 32, 1, 1), ())],
    )  # fmt: skip
    def test_weights_of_more_rows_than_scales(self, make, data, scale):
        path = make([self.scaled(data, scale), self.conv("w")], self.X)
        refused(path, "constexpr_blockwise_shift_scale", inputs=arrays(self.X))

    @pytest.mark.parametrize("scale", [600, -np.inf, np.nan, 255])
    def test_scales_whose_products_half_precision_has_not(self, tmp_path, scale):
        half = typed("fp16", 1, 32, 1, 1)
        scales = np.ones((32, 1, 1, 1), np.float16)
        scales[5] = scale
        weight = op(
            "constexpr_blockwise_shift_scale", {"w": typed("fp16", 32, 64, 1, 1)},
            data=const(np.full((32, 64, 1, 1), -128), "int8"), scale=const(scales),
        )  # fmt: skip
        conv = op("conv", {"y": half}, x="x", weight="w")
        path = write(tmp_path / "m", [weight, conv], ("y",), {"x": typed("fp16", 1, 64, 1, 1)})
        given = {"x": np.full((1, 64, 1, 1), 2**-12, np.float16)}
        found, plain = run(path, given)["y"], run(path, given, optimize=False)["y"]
        np.testing.assert_array_equal(found, plain)
        assert np.isfinite(found[0, 4]).all() and np.isfinite(found[0, 5]).all() == (scale == 255)

    def test_vectors_along_another_axis_than_declared(self, make):
        lut = op(
            "constexpr_lut_to_dense", {"w": typed("fp32", 32, 32, 1, 1)},
            indices=const(np.zeros((32, 16, 1, 1), np.int32), "uint8"), vector_axis=const(0),
            lut=const(np.ones((1, 1, 1, 1, 16, 2), np.float32)),
        )  # fmt: skip
        refused(
            make([lut, self.conv("w")], self.X), "it makes torch.float32", inputs=arrays(self.X)
        )

    @pytest.mark.parametrize(
        "extra",
        [{"dilations": const([1])}, {"dilations": const([[1, 1]])}, {"groups": const(3)},
         {"pad_type": const("valid"), "pad": const([0, 0], "int32", [4])}],
    )  # fmt: skip
    def test_parameters_that_a_product_does_not_need(self, make, extra):
        """Found by fuzzing: a product ran where the convolution that it stands for cannot."""
        weight = const(RANDOM.standard_normal((32, 32, 1, 1)).astype(np.float32))
        path = make([self.conv(weight, **extra)], self.X)
        refused(path, "op '", inputs=arrays(self.X))
