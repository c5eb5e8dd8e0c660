"""Each row of `arithmetic.toml` where nothing can be chosen: what the executor does.

The same under each semantics and with every shortcut or none. Rows whose behaviour is tested where
the op is, name that test.
"""

from _both import both, one
from _package import const, edit, op, typed
from mlprogram import MLProgram
from mlprogram.ops.activation import softplus
from mlprogram.run.native_forms import FORMS
import numpy as np
import pytest
import torch

INF = float("inf")
LARGE = 1 << 24
WIDE = np.arange(6, dtype=np.float32).reshape(2, 3)


def only(path, inputs) -> list:
    """The one result there is."""
    documented, reported, default = both(path, inputs)
    np.testing.assert_array_equal(documented, default)
    np.testing.assert_array_equal(reported, default)
    return default


def test_cast_int16(make):
    x = np.array([70000, -40000, 12], np.int32)
    casts = [
        op("cast", {"n": typed("int16", 3)}, x="x", dtype=const("int16")),
        op("cast", {"y": typed("int32", 3)}, x="n", dtype=const("int32")),
    ]
    path = make(casts, ("y",), {"x": typed("int32", 3)})
    assert only(path, {"x": x}) == [70000 - 65536, 65536 - 40000, 12]


def test_log_epsilon(make):
    """As the program stores it: 1e-45 is there in single precision and not in half."""
    for dtype, expected in ((np.float32, np.log(np.float32(1e-45))), (np.float16, -INF)):
        x, name = np.zeros(1, dtype), "fp32" if dtype == np.float32 else "fp16"
        epsilon = const(dtype(1e-45), name)
        found = only(one(make, "log", typed(name, 1), {"x": x}, epsilon=epsilon), {"x": x})
        assert found == [pytest.approx(expected)]


def test_clip_order(make):
    x = np.array([-1.0, 1.5, 9.0], np.float32)
    given = {"alpha": const(2.0), "beta": const(1.0)}
    assert only(one(make, "clip", typed("fp32", 3), {"x": x}, **given), {"x": x}) == [1, 1, 1]


def test_softplus_engine(make):
    """Right in every precision but "ane", which has the engine's form."""
    x = np.array([10.0, 12.0], np.float16)
    found = only(one(make, "softplus", typed("fp16", 2), {"x": x}), {"x": x})
    assert found == softplus(torch.from_numpy(x)).tolist() and found[1] == 12
    assert FORMS["softplus"](torch.tensor([10.0, 12.0]))[1] == 0


def test_avg_pool_seven(make):
    x = np.random.default_rng(0).standard_normal((1, 1, 16, 12)).astype(np.float32)
    given = {"kernel_sizes": const([7, 7]), "strides": const([4, 4]), "pad": const([3] * 4),
             "pad_type": const("custom")}  # fmt: skip
    found = only(one(make, "avg_pool", typed("fp32", 1, 1, 4, 3), {"x": x}, **given), {"x": x})
    padded = np.pad(x[0, 0], 3)
    means = [[padded[i : i + 7, j : j + 7].mean() for j in (0, 4, 8)] for i in (0, 4, 8, 12)]
    np.testing.assert_allclose(found[0][0], means, atol=1e-6)


def test_argmax_equals(make):
    x = np.array([[0, 7, 7, -1, -1]], np.float32)
    for kind, first in (("reduce_argmax", 1), ("reduce_argmin", 3)):
        path = one(make, kind, typed("int32", 1), {"x": x}, axis=const(1))
        assert only(path, {"x": x}) == [first]


def test_argmax_nan(make):
    x = np.array([[5, float("nan"), 7, float("nan")]], np.float32)
    for kind in ("reduce_argmax", "reduce_argmin"):
        assert only(one(make, kind, typed("int32", 1), {"x": x}, axis=const(1)), {"x": x}) == [1]


def test_topk_near_equal(make):
    """Scores one step of single precision apart are ordered by it."""
    low = np.float32(-3.3141105)
    x = np.array([low, np.nextafter(low, np.float32(0)), -9], np.float32)
    operation = op("topk", {"v": typed("fp32", 2), "y": typed("int32", 2)}, x="x", k=const(2))
    assert only(make([operation], ("y",), {"x": typed("fp32", 3)}), {"x": x}) == [1, 0]


def test_gather_nd_first(make):
    indices = np.array([[1], [0], [1]], np.int32)
    more = {"x": const(WIDE), "validate_indices": const(False)}
    path = one(make, "gather_nd", typed("fp32", 3, 3), {"indices": indices}, **more)
    assert only(path, {"indices": indices}) == WIDE[[1, 0, 1]].tolist()


def test_gather_validate(make):
    indices = np.array([1], np.int32)
    path = one(make, "gather", typed("fp32", 1, 3), {"indices": indices}, x=const(WIDE))
    assert only(path, {"indices": indices}) == WIDE[[1]].tolist()


def test_gather_bool(make):
    indices, x = np.array([1, 0], np.int32), const(np.array([True, False]))
    more = {"x": x, "axis": const(0), "validate_indices": const(False)}
    path = one(make, "gather", typed("bool", 2), {"indices": indices}, **more)
    assert only(path, {"indices": indices}) == [False, True]


def test_product_int32(make):
    x = np.array([[LARGE, 1]], np.int32)
    weight = const(np.int32([[1, 1], [2, 0]]))
    path = one(make, "linear", typed("int32", 1, 2), {"x": x}, weight=weight)
    assert only(path, {"x": x}) == [[LARGE + 1, 2 * LARGE]]


def test_attention_batch(make):
    """Each of ten by itself is what it is among them."""
    rng = np.random.default_rng(1)
    inputs = {
        n: rng.standard_normal((10, 1, 3, 4)).astype(np.float32) for n in ("query", "key", "value")
    }
    kind = "scaled_dot_product_attention"
    path = one(make, kind, typed("fp32", 10, 1, 3, 4), inputs)
    found = MLProgram(path).predict(inputs)["y"]
    single = one(make, kind, typed("fp32", 1, 1, 3, 4), {n: a[:1] for n, a in inputs.items()})
    for i in range(10):
        alone = MLProgram(single).predict({n: a[i : i + 1] for n, a in inputs.items()})["y"]
        np.testing.assert_allclose(found[i : i + 1], alone, atol=1e-6)


def test_band_part_infinity(make):
    x = np.full((3, 3), -INF, np.float32)
    given = {"lower": const(0), "upper": const(-1)}
    found = only(one(make, "band_part", typed("fp32", 3, 3), {"x": x}, **given), {"x": x})
    assert found == [[-INF] * 3, [0, -INF, -INF], [0, 0, -INF]]


def test_select_broadcast(make):
    a = np.array([[1.0], [2.0]], np.float32)
    given = {"cond": const(np.array([True, False, True])), "b": const(0.0)}
    path = one(make, "select", typed("fp32", 2, 3), {"a": a}, **given)
    assert only(path, {"a": a}) == [[1, 0, 1], [2, 0, 2]]


def test_range_fractions(make):
    given = {"start": const(1.0), "step": const(1e-2), "end": const(10.0)}
    path = make([op("range_1d", {"y": typed("fp32", None)}, **given)])
    found = only(path, {"x": WIDE})
    quotient = (10 - 1) / float(np.float32(1e-2))  # in double: a little more than 900
    assert len(found) == np.ceil(quotient) == 901 and found[0] == 1


def test_pad_reflect(make):
    x = np.array([1.0, 2.0, 3.0], np.float32)
    given = {"pad": const([4, 3]), "mode": const("reflect")}
    found = only(one(make, "pad", typed("fp32", 10), {"x": x}, **given), {"x": x})
    assert found == [1, 2, 3, 2, 1, 2, 3, 2, 1, 1]  # numpy's reflects again: ..., 2, 1, 2


def test_gru_reset(make):
    """One step of one unit, by hand: the gate multiplies the state before its product."""
    x, h = np.array([[[1.0]]], np.float32), np.array([[0.5]], np.float32)
    weights = {"weight_ih": const(np.float32([[1], [2], [0]])), "bias": const(np.float32([0] * 3)),
               "weight_hh": const(np.float32([[1], [3], [0]]))}  # fmt: skip
    made = {"y": typed("fp32", 1, 1, 1), "last": typed("fp32", 1, 1)}
    operation = op("gru", made, x="x", initial_h="h", **weights)
    path = make([operation], ("y",), {"x": typed("fp32", 1, 1, 1), "h": typed("fp32", 1, 1)})
    reset = 1 / (1 + np.exp(-1.5))
    new = np.tanh(2 + 3 * (reset * 0.5))
    assert only(path, {"x": x, "h": h})[0][0][0] == pytest.approx(new / 2 + 0.25)


def test_function_name(package):
    def rename(model):
        functions = model.mlProgram.functions
        functions["other"].CopyFrom(functions["main"])
        del functions["main"]

    program = MLProgram(edit(package, rename))
    assert program.name == "other"
    assert program.predict({"x": WIDE})["y"].tolist() == (2 * WIDE).tolist()
