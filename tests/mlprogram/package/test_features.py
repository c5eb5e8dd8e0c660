"""What the description says of inputs and outputs: packages that coremltools wrote, run by it."""

from functools import cache
import warnings

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types
from mlprogram import MLProgram
from mlprogram.compare import numerics
from mlprogram.errors import InvalidInput, InvalidType
from mlprogram.run.program import State
import numpy as np
import pytest
import torch

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)  # (H, W, RGB)
GRAY = PIXELS[..., 0]


def convert(program, **options) -> MLProgram:
    options = {"minimum_deployment_target": ct.target.iOS17, "skip_model_load": True} | options
    options.setdefault("compute_precision", ct.precision.FLOAT32)
    return MLProgram.from_mlmodel(ct.convert(program, **options))


@cache
def identity(shape, dtype=types.fp32, symbolic=(), given=None) -> MLProgram:
    """A program that gives its input `x` back as `y`; the sizes at `symbolic` are flexible.

    given: the input's type, for coremltools.
    """
    sizes = [get_new_symbol() if i in symbolic else size for i, size in enumerate(shape)]

    @mb.program(input_specs=[mb.TensorSpec(sizes, dtype=dtype)], opset_version=ct.target.iOS17)
    def program(x):
        return mb.identity(x=x, name="y")

    return convert(program, **({"inputs": [given]} if given else {}))


@cache
def image(layout="RGB", shape=None, symbolic=(), **options) -> MLProgram:
    """A program whose input is an image, and whose output the tensor that it becomes."""
    plain = (1, 1 if "GRAY" in layout else 3, 4, 6)
    options |= {"shape": shape or plain, "color_layout": ct.colorlayout[layout]}
    return identity(plain, symbolic=symbolic, given=ct.ImageType("x", **options))


class Unwilling:
    """What a library may hand over that is asked for an array and has none."""

    def __array__(self, *arguments, **options):
        raise RuntimeError("the device is gone\nand more")


def nested(depth: int) -> list:
    value: list = [1.0]
    for _ in range(depth):
        value = [value]
    return value


class Same(torch.nn.Module):
    def forward(self, x):
        return x + 0.0


class TestImages:
    @pytest.mark.parametrize(
        "given", [PIXELS / 255, PIXELS.transpose(2, 0, 1)[None] / np.float32(255)]
    )
    def test_floats_of_0_to_1_are_warned_of(self, given):
        program = image()
        with pytest.warns(UserWarning, match="'x' is an image, with values of 0 to 255") as warned:
            program.predict({"x": given})
        assert len(warned) == 1

    @pytest.mark.parametrize("given", [PIXELS, PIXELS * 1.0, PIXELS * 0.0, PIXELS > 99])
    def test_other_pixels_are_not(self, given):
        programs = image(), image("GRAYSCALE_FLOAT16")
        with warnings.catch_warnings(action="error", category=UserWarning):
            programs[0].predict({"x": given})
            programs[1].predict({"x": given[..., 0] / 300})

    @pytest.mark.parametrize("order", ["RGB", "BGR"])
    def test_colours_arrive_in_the_declared_order(self, order):
        program = image(order)
        expected = PIXELS.transpose(2, 0, 1)[None]
        expected = expected[:, ::-1] if order == "BGR" else expected
        np.testing.assert_array_equal(program.predict({"x": PIXELS})["y"], expected)
        np.testing.assert_array_equal(program.predict({"x": expected})["y"], expected)

    def test_scale_and_bias_are_ops_of_the_program(self):
        program = image("BGR", scale=0.5, bias=(1, 2, 3))
        expected = PIXELS[..., ::-1].transpose(2, 0, 1)[None] * 0.5
        expected += np.reshape([1, 2, 3], (1, 3, 1, 1))
        np.testing.assert_allclose(program.predict({"x": PIXELS})["y"], expected, rtol=1e-6)

    def test_a_pil_image_gives_what_its_pixels_give(self):
        Image = pytest.importorskip("PIL.Image")
        color, gray = image("BGR"), image("GRAYSCALE")
        picture = Image.fromarray(PIXELS)
        np.testing.assert_array_equal(
            color.predict({"x": picture})["y"], color.predict({"x": PIXELS})["y"]
        )
        np.testing.assert_array_equal(
            gray.predict({"x": picture.convert("L")})["y"][0, 0], np.asarray(picture.convert("L"))
        )

    def test_a_pil_image_of_another_mode_is_refused_as_by_coremltools(self):
        Image = pytest.importorskip("PIL.Image")
        for layout, mode, others in (("BGR", "RGB", ("RGBA", "L")), ("GRAYSCALE", "L", ("RGB",))):
            for other in others:
                with pytest.raises(TypeError, match=f"of mode {mode}, not {other}: .convert"):
                    image(layout).predict({"x": Image.new(other, (6, 4))})

    def test_gray_in_half_precision(self):
        program = image("GRAYSCALE_FLOAT16")
        given = program.predict({"x": GRAY / 300})["y"]
        np.testing.assert_allclose(given[0, 0], GRAY / 300, rtol=1e-3)

    def test_sizes(self):
        sizes = [(1, 3, 4, 6), (1, 3, 8, 6)]
        listed = image(shape=ct.EnumeratedShapes(sizes), symbolic=(2,))
        shape = ct.Shape((1, 3, ct.RangeDim(2, 5, default=4), ct.RangeDim(6, 9, default=6)))
        ranged = image(shape=shape, symbolic=(2, 3))
        for program in (listed, ranged):
            assert program.predict({"x": PIXELS})["y"].shape == (1, 3, 4, 6)
            assert program.features["x"].shape == (1, 3, 4, 6)
        with pytest.raises(InvalidInput, match=r"\(1, 3, 4, 6\) or \(1, 3, 8, 6\), not .* 3, 6, 6"):
            listed.predict({"x": np.zeros((6, 6, 3), np.uint8)})
        with pytest.raises(InvalidInput, match=r"\(1, 3, 2 to 5, 6 to 9\), not"):
            ranged.predict({"x": np.zeros((6, 6, 3), np.uint8)})
        with pytest.raises(InvalidInput, match=r"not an array of shape \(1, 3, 4, 8\)"):
            image().predict({"x": np.zeros((4, 8, 3), np.uint8)})

    def test_pixels_without_colour(self):
        with pytest.raises(InvalidInput, match=r"RGB image: give a PIL .* not .*\(4, 6\)"):
            image().predict({"x": GRAY})

    @pytest.mark.parametrize(
        ("layout", "mode"),
        [("RGB", "RGBA"), ("BGR", "RGBA"), ("GRAYSCALE", "L"), ("GRAYSCALE_FLOAT16", "F")],
    )
    def test_an_output_is_a_pil_image(self, layout, mode):
        pytest.importorskip("PIL.Image")
        shape = (1, 1 if "GRAY" in layout else 3, 2, 2)
        output = ct.ImageType(name="y", color_layout=ct.colorlayout[layout])
        traced = torch.jit.trace(Same(), torch.zeros(shape))
        program = convert(traced, inputs=[ct.TensorType("x", shape)], outputs=[output])
        x = np.zeros(shape)
        x[0, 0] = [[-3, 0.4], [254.6, 300]]
        result = program.predict({"x": x})["y"]
        assert (result.mode, result.size) == (mode, (2, 2))
        pixels = np.asarray(result)
        if mode == "F":
            np.testing.assert_allclose(pixels, x[0, 0], rtol=1e-3)
        elif mode == "L":
            np.testing.assert_array_equal(pixels, [[0, 0], [255, 255]])
        else:
            first = {"RGB": 0, "BGR": 2}[layout]
            np.testing.assert_array_equal(pixels[..., first], [[0, 0], [255, 255]])
            np.testing.assert_array_equal(pixels[..., 3], 255)  # as coremltools' tests have it


class TestShapes:
    def test_enumerated(self):
        shapes = ct.EnumeratedShapes([(1, 2), (1, 5)], default=(1, 5))
        program = identity((1, 5), symbolic=(1,), given=ct.TensorType("x", shape=shapes))
        assert program.predict({"x": np.ones((1, 2))})["y"].shape == (1, 2)
        assert program.random_inputs()["x"].shape == (1, 5)
        words = (
            r"MultiArray Shape \(1 x 4\) was not in enumerated set of allowed shapes$"  # Core ML's
        )
        with pytest.raises(InvalidInput, match=rf"shape \(1, 5\) or \(1, 2\), not .*: {words}"):
            program.predict({"x": np.ones((1, 4))})

    def test_ranged(self):
        shape = ct.Shape((1, ct.RangeDim(2, 5, default=3)))
        program = identity((1, 3), symbolic=(1,), given=ct.TensorType("x", shape=shape))
        for size in (2, 5):
            assert program.predict({"x": np.ones((1, size))})["y"].shape == (1, size)
        assert program.random_inputs()["x"].shape == (1, 3)
        for size in (1, 6):
            words = rf"Size \({size}\) of dimension \(1\) is not in allowed range \(2\.\.5\)$"
            with pytest.raises(InvalidInput, match=rf"fp32\(1, 2 to 5\), not an array .*: {words}"):
                program.predict({"x": np.ones((1, size))})
        with pytest.raises(InvalidInput, match=r"not an array of shape \(3,\)$"):
            program.predict({"x": np.ones(3)})

    def test_without_an_upper_bound(self):
        shape = ct.Shape((1, ct.RangeDim(2, 5)))
        program = identity((1, 3), symbolic=(1,), given=ct.TensorType("x", shape=shape))
        declared = program.package.description.input[0].type.multiArrayType
        declared.shapeRange.sizeRanges[1].upperBound = -1  # which coremltools does not write
        assert program.predict({"x": np.ones((1, 99))})["y"].shape == (1, 99)
        with pytest.raises(InvalidInput, match=r"fp32\(1, 2 or more\), not"):
            program.predict({"x": np.ones((1, 1))})

    def test_a_description_that_does_not_fit_its_program_is_left_aside(self):
        program = identity.__wrapped__((1, 3))  # one of our own
        program.package.description.input[0].type.multiArrayType.shape[:] = [9, 9, 9]
        assert program.predict({"x": np.ones((1, 3))})["y"].shape == (1, 3)
        assert program.random_inputs()["x"].shape == (1, 3)


class TestValues:
    @pytest.mark.parametrize(
        "given", [[2, 3], (2.0, 3.0), np.array([2, 3], np.int64), torch.ones(2) + torch.arange(2)]
    )
    def test_whatever_numpy_makes_an_array_of(self, given):
        result = identity((2,), types.int32).predict({"x": given})["y"]
        assert result.dtype == np.int32 and [1, 1] < result.tolist() <= [2, 3]

    @pytest.mark.parametrize("dtype", [">f4", np.longdouble, np.float64, np.uint16, bool])
    def test_floats_of_any_kind(self, dtype):
        x = np.array([1, 0], dtype)
        for given in (x, x[::-1], np.broadcast_to(x, (2, 2))[0]):
            result = identity((2,)).predict({"x": given})["y"]
            np.testing.assert_array_equal(result, given.astype(np.float32))

    def test_a_number_for_one_element(self):
        assert identity((1,)).predict({"x": 2})["y"].tolist() == [2]
        assert identity((1, 1)).predict({"x": 2.5})["y"].tolist() == [[2.5]]
        with pytest.raises(InvalidInput, match="not an array of shape"):
            identity((2,)).predict({"x": 2})

    @pytest.mark.parametrize("value", [1.5, np.nan, np.inf, 2**40, 1e20])
    def test_what_is_no_integer_of_the_declared_width(self, value):
        with pytest.raises(InvalidInput, match=r"must be int32\(2\); .* is none"):
            identity((2,), types.int32).predict({"x": np.array([0, value])})

    def test_an_input_with_a_default_may_be_left_out(self):
        default = np.full((2,), 1.5, np.float32)

        @mb.program(input_specs=[mb.TensorSpec((2,)), mb.TensorSpec((2,))])
        def program(x, y):
            return mb.add(x=x, y=y, name="z")

        inputs = [ct.TensorType("x", (2,), default_value=default), ct.TensorType("y", (2,))]
        running = convert(program, inputs=inputs)
        assert running.predict({"y": [1, 2]})["z"].tolist() == [2.5, 3.5]
        assert running.predict({"x": [0, 0], "y": [1, 2]})["z"].tolist() == [1, 2]
        with pytest.raises(InvalidInput, match="missing: y$"):
            running.predict({})

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_tensors_that_numpy_does_not_take(self, dtype):
        x = torch.ones(2, dtype=dtype, requires_grad=True)
        np.testing.assert_array_equal(identity((2,)).predict({"x": x})["y"], 1)

    @pytest.mark.parametrize(
        "value",
        [
            None, "12", {}, {1, 2}, object(), [object()] * 2, b"12", ["a", "b"], [1, None],
            [10**400, 1], np.array([1, 2], object), np.array(["a", "b"]), np.array([1j, 2j]),
            np.zeros(2, "M8[s]"), np.zeros(2, [("a", "f4")]), torch.ones(2, dtype=torch.complex64),
            torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones([1] * 70),
            torch.ones(2, dtype=torch.float8_e5m2), Unwilling(), nested(70), nested(5000),
        ],
    )  # fmt: skip
    def test_what_is_no_array_of_numbers(self, value):
        program = identity((2,))
        with pytest.raises(
            InvalidType, match=r"^input 'x' must be fp32\(2\)[^\n]{,250}$"
        ) as raised:
            program.predict({"x": value})
        assert isinstance(raised.value, TypeError)  # as `MLModel.predict` raises

    def test_a_list_of_inputs_gives_a_list_of_results(self):
        results = identity((1,)).predict([{"x": 1}, {"x": 2}])
        assert [result["y"].item() for result in results] == [1, 2]


@pytest.mark.parametrize("labels", [["cat", "dog", "ox"], [7, 8, 9]])
def test_a_classifier_gives_a_label_and_probabilities_by_label(labels):
    @mb.program(input_specs=[mb.TensorSpec((1, 3))])
    def program(x):
        return mb.softmax(x=x, axis=-1, name="p")

    inputs = [ct.TensorType("x", (1, 3))]
    running = convert(program, inputs=inputs, classifier_config=ct.ClassifierConfig(labels))
    result = running.predict({"x": [[0.0, 2.0, 1.0]]})
    name = running.package.description.predictedFeatureName
    probabilities = result[running.package.description.predictedProbabilitiesName]
    assert result[name] == labels[1] and type(result[name]) is type(labels[1])
    expected = np.exp([0, 2, 1]) / np.exp([0, 2, 1]).sum()
    np.testing.assert_allclose([probabilities[label] for label in labels], expected, rtol=1e-5)


class TestInputs:
    def test_random_ones_are_seeded_and_safe(self):
        program, indices = identity((64,)), identity((64,), types.int32)
        once, again = program.random_inputs(3)["x"], program.random_inputs(3)["x"]
        np.testing.assert_array_equal(once, again)
        assert (once != program.random_inputs(4)["x"]).any()
        assert set(indices.random_inputs()["x"].tolist()) == {0, 1}
        pixels = image().random_inputs()["x"]
        assert pixels.min() >= 0 and 200 < pixels.max() <= 255


class Difference(torch.nn.Module):
    def forward(self, x, y):
        return x - y


@pytest.fixture(scope="module")
def renamed() -> MLProgram:
    traced = torch.jit.trace(Difference().eval(), [torch.ones(2)] * 2)
    inputs = [ct.TensorType("x/0", (2,)), ct.TensorType("state", (2,))]
    with pytest.warns(UserWarning, match="has been renamed"):
        return convert(traced, inputs=inputs, outputs=[ct.TensorType("z")])


class TestNames:
    """coremltools cleans the names of a source model's inputs; both names are known."""

    @pytest.mark.parametrize("first", ["x/0", "x_0", "x.0"])
    @pytest.mark.parametrize("second", ["state", "state_workaround"])
    def test_both_names(self, renamed, first, second):
        assert list(renamed.inputs) == ["x_0", "state_workaround"]
        given = {second: [1, 1], first: [5, 6]}
        assert renamed.predict(given)["z"].tolist() == [4, 5]
        assert [name for name, _ in renamed.trace(given)] == ["z"]
        assert numerics.report(renamed, given) == []

    def test_one_input_by_two_names(self, renamed):
        with pytest.raises(InvalidInput, match="unknown: x/0$"):
            renamed.predict({"x/0": [1, 1], "x_0": [1, 1], "state": [1, 1]})

    def test_names_of_no_input(self, renamed):
        with pytest.raises(InvalidInput, match="missing: x_0; unknown: w/0, x$"):
            renamed.predict({"w/0": [1, 1], "x": [1, 1], "state": [1, 1]})


def test_an_axis_of_size_1_may_go_backwards():
    """numpy calls such an array contiguous, and torch refuses its strides."""
    backwards = np.arange(4, dtype=np.float32)[None, ::-1][::-1][..., 1:2]
    assert backwards.flags.carray and min(backwards.strides) < 0
    assert identity((1, 1)).predict({"x": backwards})["y"] == 2


def test_a_state_may_be_given_as_such_an_array():
    state = State({"s": torch.zeros(1, 3)})
    state.write_state("s", np.float32([[1, 2, 3]])[::-1])
    assert [*state.read_state("s").reshape(-1)] == [1, 2, 3]
