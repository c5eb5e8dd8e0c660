"""Each row of `arithmetic.toml` where `semantics` chooses: both readings, and the default."""

from functools import partial

from _both import both, of, one
from _package import const, op, typed
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.run.pipeline import open_model
import numpy as np
import pytest

NAN, INF = float("nan"), float("inf")
LARGE = 1 << 24


def same(found, expected) -> None:
    np.testing.assert_array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_mod_sign(make, dtype):
    given = {"x": np.array([-7, 7, -7, 7], dtype), "y": np.array([2, -2, -2, 2], dtype)}
    name = {"float32": "fp32", "float16": "fp16", "int32": "int32"}[np.dtype(dtype).name]
    path = one(make, "mod", typed(name, 4), {"x": given["x"]}, y=const(given["y"]))
    documented, reported, default = both(path, {"x": given["x"]})
    same(documented, [1, -1, -1, 1])
    same(reported, [-1, 1, -1, 1])
    same(default, reported)


def test_mod_sign_of_whole_numbers_that_end_a_process(make):
    """The least one by -1, and any by 0, under either reading."""
    x = np.array([-(1 << 31), 5, 7], np.int32)
    path = one(make, "mod", typed("int32", 3), {"x": x}, y=const(np.int32([-1, 0, 4])))
    documented, reported, default = both(path, {"x": x})
    same([documented, reported, default], [[0, 0, 3]] * 3)


def test_pow_base_two(make):
    x = np.array([-1, 0, 3, 5], np.float32)
    operation = op("pow", {"y": typed("fp32", 4)}, x=const(2.0), y="e")
    path = make([operation], ("y",), {"e": typed("fp32", 4)})
    documented, reported, default = both(path, {"e": x})
    same(documented, [0.5, 1, 8, 32])
    same(reported, [1, 0, 9, 25])
    same(default, reported)


@pytest.mark.parametrize(
    "kind, y, exact, single",
    [("add", 1, LARGE + 1, LARGE), ("sub", -1, LARGE + 1, LARGE), ("mul", 3, 3 * LARGE, 3 * LARGE)],
)
def test_int32_single(make, kind, y, exact, single):
    x = np.array([LARGE, 5], np.int32)
    path = one(make, kind, typed("int32", 2), {"x": x}, y=const(np.int32(y)))
    documented, reported, default = both(path, {"x": x})
    assert (documented[0], reported[0]) == (exact, single)
    assert documented[1] == reported[1] and default == documented


def test_int32_single_stops_at_the_last_number(make):
    x = np.array([LARGE + 1, 1 << 30], np.int32)
    path = one(make, "mul", typed("int32", 2), {"x": x}, y=const(np.int32([1, 4])))
    documented, reported, _ = both(path, {"x": x})
    same(documented, [LARGE + 1, 0])  # exact, and wraps
    same(reported, [LARGE, (1 << 31) - 1])


def test_cast_outside(make):
    x = np.array([NAN, INF, -INF, 1e10, -1e10, -2.7], np.float32)
    path = one(make, "cast", typed("int32", 6), {"x": x}, dtype=const("int32"))
    least, most = -(1 << 31), (1 << 31) - 1
    same(of(path, {"x": x}, "reported"), [0, most, least, most, least, -2])
    default = of(path, {"x": x})
    same(default, of(path, {"x": x}, "documented"))
    assert default[-1] == -2  # the others are the processor's


def test_max_pool_padding(make):
    """webnn's issue 935 has these sizes: three windows of 3 are declared, torch's rule has two."""
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    given = {"kernel_sizes": const([3, 3]), "strides": const([3, 3]), "pad": const([1] * 4),
             "pad_type": const("custom"), "ceil_mode": const(True)}  # fmt: skip
    path = one(make, "max_pool", typed("fp32", 1, 1, 3, 3), {"x": x}, **given)
    expected = [[6, 9, -INF], [21, 24, -INF], [-INF] * 3]
    same(of(path, {"x": x})[0, 0], expected)
    same(of(path, {"x": x}, "reported")[0, 0], expected)
    with pytest.raises(InvalidPackage, match="declare"):
        of(path, {"x": x}, "documented")
    path = one(make, "max_pool", typed("fp32", 1, 1, 2, 2), {"x": x}, **given)
    documented, reported, default = both(path, {"x": x})
    same(documented, [[[[6, 9], [21, 24]]]])
    assert documented == reported == default


@pytest.mark.parametrize("ascending", [True, False])
def test_sort_nan(make, ascending):
    x = np.array([[2, NAN, -INF, 1, NAN], [3, 2, 1, 5, 4]], np.float32)
    path = one(make, "argsort", typed("int32", 2, 5), {"x": x}, ascending=const(ascending))
    documented, reported, default = both(path, {"x": x})
    order = [2, 3, 0] if ascending else [0, 3, 2]
    same(documented[0], [*order, 1, 4] if ascending else [1, 4, *order])
    same(reported[0], [1, 4, *order] if ascending else [*order, 1, 4])
    assert default == documented and documented[1] == reported[1]


NEGATIVE = np.array([-1, 1, 7], np.int32)


@pytest.mark.parametrize("kind", ["gather", "gather_along_axis"])
def test_gather_negative(make, kind):
    """The first is rustnn's pull request 227: -1 of [10, 20, 30]."""
    more = {"x": const([10.0, 20.0, 30.0]), "validate_indices": const(False)}
    path = one(make, kind, typed("fp32", 3), {"indices": NEGATIVE}, **more)
    documented, reported, default = both(path, {"indices": NEGATIVE})
    same(documented, [30, 20, 30])
    same(reported, [10, 20, 30])
    assert default == documented


def test_gather_negative_is_refused_where_it_is_checked(make):
    more = {"x": const([10.0, 20.0, 30.0]), "validate_indices": const(True)}
    path = one(make, "gather", typed("fp32", 3), {"indices": NEGATIVE}, **more)
    for semantics in ("documented", "reported", None):
        with pytest.raises(InvalidInput, match="outside"):
            of(path, {"indices": NEGATIVE}, semantics)


def test_gather_nd_negative(make):
    indices = np.array([[-1, 1], [0, -1]], np.int32)
    more = {"x": const(np.float32([[1, 2], [3, 4]])), "validate_indices": const(False)}
    path = one(make, "gather_nd", typed("fp32", 2), {"indices": indices}, **more)
    documented, reported, default = both(path, {"indices": indices})
    same(documented, [4, 2])
    same(reported, [2, 1])
    assert default == documented


@pytest.mark.parametrize("mask", ["bool", "fp32"])
def test_attention_closed_row(make, mask):
    """The default is neither: 0, as PyTorch has it."""
    q = np.ones((1, 1, 2, 4), np.float32)
    opened = np.array([[[[True, False, True], [False] * 3]]])
    given = opened if mask == "bool" else np.where(opened, 0, -np.inf).astype(np.float32)
    inputs = {
        "query": q,
        "key": np.ones((1, 1, 3, 4), np.float32),
        "value": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4),
        "attn_mask": given,
    }
    path = one(make, "scaled_dot_product_attention", typed("fp32", 1, 1, 2, 4), inputs)
    documented, reported, default = both(path, inputs)
    same(documented[0][0], [[4, 5, 6, 7], [NAN] * 4])
    same(default[0][0], [[4, 5, 6, 7], [0] * 4])
    assert reported == default


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_log_sum_exp(make, dtype):
    """rustnn's pull request 213 names 100 and -100."""
    x = np.array([[100, 99], [-100, -200], [1, 2]], dtype)
    name = {"float32": "fp32", "float16": "fp16"}[np.dtype(dtype).name]
    path = one(make, "reduce_log_sum_exp", typed(name, 3), {"x": x}, axes=const([1]))
    documented, reported, default = both(path, {"x": x})
    np.testing.assert_allclose(documented, [100.3133, -100, 2.3133], rtol=1e-3)
    assert reported[0] == INF and reported[2] == pytest.approx(documented[2], rel=1e-3)
    assert reported[1] == -INF if dtype == np.float16 else reported[1] == pytest.approx(-100, 1e-2)
    assert default == documented


def test_unknown_semantics_are_refused(package):
    for opened in (partial(MLProgram, package), partial(open_model, package)):
        with pytest.raises(InvalidInput, match="semantics must be"):
            opened(semantics="torch")


def test_semantics_go_with_what_is_made_of_a_program(make):
    x = np.array([-7.0], np.float32)
    path = one(make, "mod", typed("fp32", 1), {"x": x}, y=const(np.float32([2])))
    program = open_model(path, semantics="documented")
    assert program.plain().semantics == program.function("main").semantics == "documented"
    assert program.plain("fp32").predict({"x": x})["y"].tolist() == [1]


def test_an_op_whose_reading_is_chosen_has_no_kernel(make):
    """`gather` has one, which stays where an index can be no other than documented."""
    x = const(np.float32([10, 20, 30]))
    more = {"x": x, "axis": const(0), "validate_indices": const(False)}
    path = one(make, "gather", typed("fp32", 3), {"indices": NEGATIVE}, **more)
    known = make([op("gather", {"y": typed("fp32", 2)}, indices=const(np.int32([0, 2])), **more)])

    def kernels(path, semantics):
        return [step.kernel for step in MLProgram(path, semantics=semantics).plan.main.steps]

    assert kernels(path, None) == kernels(path, "documented") == kernels(known, "reported")
    assert kernels(path, "reported") == [""]
