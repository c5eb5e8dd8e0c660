"""Half precision, the default: masks hide and make no NaN, whole numbers stay what they are."""

from _graphs import Maker, hold_to_onnxruntime
from _verdict import oracle
from mlprogram import MLProgram
from mlprogram.onnx.graph import convert_graph
import numpy as np
import pytest

RANDOM = np.random.default_rng(3)
LEAST = float(np.finfo(np.float32).min)
ROWS, HEADS, TOKENS = 3, 2, 6
#: Part of a row hidden, all of one (as of an empty text in a batch), none.
SHOWN = np.int64([[1, 1, 1, 1, 0, 0], [0] * TOKENS, [1] * TOKENS])
CAUSAL = np.tril(np.ones((TOKENS, TOKENS), bool))


class Masks(Maker):
    """A graph of scores and a mask of ones and zeros, and the parts that exporters mask with."""

    def __init__(self, number: float):
        super().__init__()
        self.zero, self.one = self.real(0), self.real(1)
        self.hidden = self.real(number)
        self.scores = self.input("scores", [ROWS, HEADS, TOKENS, TOKENS])
        self.input("mask", [ROWS, TOKENS], np.int64)
        self.shown = self("Unsqueeze", "mask", self.constant(np.int64([1, 2])))
        self.truth = self("Cast", self.shown, to=9)
        self.bias = self("Where", self.truth, self.zero, self.hidden)

    def real(self, value) -> str:
        return self.constant(np.float32(value))

    def softmax(self, *summands: str) -> str:
        return self("Softmax", self("Sum", *summands), axis=-1)

    def inverted(self) -> str:
        return self("Sub", self.one, self("Cast", self.shown, to=1))

    def unmasked(self) -> str:
        """As transformers does it for sdpa: a row that is all hidden is shown instead."""
        full = self("Cast", self("Equal", self.bias, self.hidden), to=6)
        full = self("Cast", self("ReduceMin", full, axes=[-1], keepdims=1), to=9)
        return self("Mul", self.bias, self("Cast", self("Not", full), to=1))


def masked(path, number: float):
    """The forms in which transformers and PyTorch's exporter hide places, an output each."""
    make = Masks(number)
    scores, bias, hidden = make.scores, make.bias, make.hidden
    above = make("Neg", make("Where", make.truth, make.zero, make.real(-number)))
    lowest = make("Max", make("Add", scores, bias), make.real(LEAST))
    kept = make("Clip", make("Add", scores, bias), make.real(LEAST), make.real(-LEAST))
    filled = make("Where", make.truth, scores, hidden)
    outputs = [
        make.softmax(scores, make("Mul", make.inverted(), hidden)),
        make.softmax(make("Sub", scores, make("Mul", make.inverted(), make.real(-number)))),
        make.softmax(scores, bias),
        make.softmax(scores, above),
        make.softmax(scores, make("Min", bias, make.constant(np.float32(0)))),
        make.softmax(scores, bias, make.constant(np.where(CAUSAL, 0, np.float32(number)))),
        make.softmax(lowest),
        make.softmax(kept),
        make.softmax(filled),
        make.softmax(make("Where", make.constant(CAUSAL), filled, hidden)),
        make.softmax(scores, make("Where", make("Cast", make.inverted(), to=9), hidden, bias)),
        make.softmax(scores, make.unmasked()),
        make("Where", make.truth, make.softmax(filled), make.zero),  # as DeBERTa
        make("Exp", make("LogSoftmax", filled, axis=-1)),
    ]
    return make.save(path, outputs)


@pytest.mark.parametrize("number", [LEAST, -1e9], ids=["least", "-1e9"])
def test_what_a_mask_hides_is_hidden_and_a_row_that_is_all_hidden_is_even(tmp_path, number):
    scores = RANDOM.normal(0, 4, (ROWS, HEADS, TOKENS, TOKENS)).astype(np.float32)
    given = {"scores": scores, "mask": SHOWN}
    hold_to_onnxruntime(masked(tmp_path / "m.onnx", number), given, 5e-3, "fp16")


def test_scores_of_any_size_below_zero_do_not_overflow_with_a_mask(tmp_path):
    """-65504 and a score of -16 are infinite in fp16, and a row of these is NaN."""
    given = {"scores": np.full((ROWS, HEADS, TOKENS, TOKENS), -900, np.float32), "mask": SHOWN}
    hold_to_onnxruntime(masked(tmp_path / "m.onnx", LEAST), given, 5e-3, "fp16")


def test_a_mask_of_fp16s_own_least_number_that_is_cast(tmp_path):
    make = Masks(-65504)
    half = make("Sub", make.constant(np.float16(1)), make("Cast", make.shown, to=10))
    half = make("Mul", half, make.constant(np.float16(-65504)))
    y = make.softmax(make.scores, make("Cast", half, to=1))
    scores = RANDOM.uniform(-90, -50, (ROWS, HEADS, TOKENS, TOKENS)).astype(np.float32)
    package = convert_graph(make.save(tmp_path / "m.onnx", [y]), tmp_path / "m.mlpackage")
    (got,) = MLProgram(package).predict({"scores": scores, "mask": SHOWN}).values()
    assert np.isfinite(got).all()
    assert np.allclose(got[1], 1 / TOKENS, atol=1e-3) and (got[0, ..., 4:] == 0).all()


def test_infinity_hides_as_it_does_in_onnxruntime(tmp_path):
    """A row that is all hidden is NaN, which PyTorch's exporter has the graph look for."""
    make = Masks(-np.inf)
    y = make.softmax(make.scores, make.bias)
    guarded = make("Where", make("IsNaN", y), make.zero, y)
    path = make.save(tmp_path / "m.onnx", [guarded])
    scores = RANDOM.normal(0, 4, (ROWS, HEADS, TOKENS, TOKENS)).astype(np.float32)
    hold_to_onnxruntime(path, {"scores": scores, "mask": SHOWN}, 5e-3, "fp16")


def test_infinity_stays_where_it_is_meant(tmp_path):
    make = Maker()
    x = make.input("x", [1, 4])
    least, one = make.constant(np.float32(-np.inf)), make.constant(np.float32(1))
    infinite = make("Where", make("Less", x, make.constant(np.float32(0))), least, x)
    outputs = [
        make("Cast", make("IsInf", infinite), to=6),
        make("Max", x, least),
        make("Clip", x, least, one),
        make("Clip", x, make.constant(np.float32(0)), make.constant(np.float32(-LEAST))),
    ]
    path = make.save(tmp_path / "m.onnx", outputs)
    hold_to_onnxruntime(path, {"x": np.float32([[-60000, -2, 3, 60000]])}, 1e-3, "fp16")


def test_large_numbers_that_hide_nothing_stay(tmp_path):
    """A temperature, a rate of samples, a limit: within half precision or computed in single."""
    make = Maker()
    x = make.input("x", [1, 4])
    large = make.constant(np.float32(1e6))
    rate = make.constant(np.float32(44100))
    outputs = [
        make("Softmax", make("Mul", x, large)),
        make("Mul", x, large),
        make("Softmax", make("Mul", make("Mul", x, rate), rate)),
    ]
    path = make.save(tmp_path / "m.onnx", outputs)
    hold_to_onnxruntime(path, {"x": np.float32([[1e-6, 2e-6, 3e-6, 0]])}, 2e-2, "fp16")


WHOLE = np.int64([[5, -2, 70000, 250000, 0, -70000]])


def test_whole_numbers_beyond_16_bits_are_looked_up_sorted_and_written(tmp_path):
    make = Maker()
    x, at = make.input("x", [1, 6], np.int64), make.input("at", [1, 3], np.int64)
    places = make("Concat", make("Mul", at, make.constant(np.int64(0))), at, axis=0)
    outputs = [
        make("Gather", x, make.constant(np.int64([1, 2, 3])), axis=1),
        make("Gather", x, at, axis=1),
        make("GatherElements", x, at, axis=1),
        make("GatherND", x, make("Transpose", places, perm=[1, 0])),
        *make("TopK", x, make.constant(np.int64([3])), axis=1, count=2),
        make("ScatterElements", x, at, make.constant(np.int64([[99999, 7, -99999]])), axis=1),
        make("Squeeze", x, make.constant(np.int64([0]))),
        make("Gather", make.constant(np.arange(70000) * 3), make("Abs", x), axis=0),
    ]
    path = make.save(tmp_path / "m.onnx", outputs)
    given = {"x": WHOLE.clip(-69999, 69999), "at": np.int64([[1, 3, 5]])}
    hold_to_onnxruntime(path, given, 0, "fp16")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32])
def test_whole_numbers_of_every_width(tmp_path, dtype):
    make, known = Maker(), np.iinfo(dtype)
    x = make.input("x", [1, 4], dtype)
    some = make("Gather", x, make.constant(np.int64([3, 1])), axis=1)
    path = make.save(
        tmp_path / "m.onnx",
        [some, make("GatherElements", x, make.constant(np.int64([[2, 0]])), axis=1)],
    )
    given = {"x": np.array([[known.min, known.max, known.max // 3, 1]], dtype)}
    hold_to_onnxruntime(path, given, 0, "fp16")


def test_whole_numbers_that_go_through_real_ones(tmp_path):
    """fp16 has them up to 2,048: positions by a sum, a half that is cut off, powers, means."""
    make = Maker()
    x = make.input("x", [1, 3000], np.int64)
    real = make("Cast", x, to=1)
    half = make("Floor", make("Mul", real, make.constant(np.float32(0.5))))
    outputs = [
        make("Cast", make("CumSum", real, make.constant(np.int64(1))), to=7),
        make("Cast", make("Squeeze", half, make.constant(np.int64([0]))), to=7),
        make("Pow", x, make.constant(np.int64(2))),
        make("ReduceMean", x, axes=[1]),
        make("Less", real, make.constant(np.float32(3001.5))),
    ]
    path = make.save(tmp_path / "m.onnx", outputs)
    given = {"x": np.arange(3000)[None] + 2}
    hold_to_onnxruntime(path, given, 0, "fp16")


def test_products_of_quantised_numbers_are_beyond_fp16_and_right(tmp_path):
    """As ONNX Runtime's dynamic quantisation writes every linear layer."""
    make = Maker()
    q, scale, zero = make("DynamicQuantizeLinear", make.input("x", [2, 256]), count=3)
    # seven bits: on a CPU without VNNI, ONNX Runtime clips what two products of eight add up to
    weight = make.constant(RANDOM.integers(-32, 64, (256, 8)).astype(np.int8))
    sums = make("MatMulInteger", q, weight, zero)
    y = make("Mul", make("Cast", sums, to=1), make("Mul", scale, make.constant(np.float32(0.01))))
    path = make.save(tmp_path / "m.onnx", [y])
    x = RANDOM.standard_normal((2, 256), np.float32) + 1
    (sizes,) = oracle(path, {"x": x})
    assert np.abs(sizes).max() / (0.01 * np.ptp(x) / 255) > 65504
    hold_to_onnxruntime(path, {"x": x}, 5e-3, "fp16")


def test_what_is_quantised_to_a_byte_is_computed_in_half(tmp_path):
    """Its range is known, and so nothing of a quantised network stays in single precision."""
    make = Maker()
    scale, zero = make.constant(np.float32(0.05)), make.constant(np.uint8(128))
    q = make("QuantizeLinear", make.input("x", [1, 8]), scale, zero)
    y = make("DequantizeLinear", q, scale, zero)
    y = make("QuantizeLinear", make("Add", y, y), scale, zero)
    y = make("DequantizeLinear", y, scale, zero)
    package = convert_graph(make.save(tmp_path / "m.onnx", [y]), tmp_path / "m.mlpackage")
    ops = [o for o in MLProgram(package).operations if o.type in ("add", "sub", "mul", "real_div")]
    assert ops and {v.dtype for o in ops for _, v in o.outputs} == {"fp16"}
