"""Elementwise and activation ops, unary on every half precision number there is."""

from functools import cache

from _oracle import FLOATS, close, few, infer, run
from _package import const, op, typed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from mlprogram import MLProgram
import numpy as np
import pytest


@cache
def halves(low=-np.inf, high=np.inf):
    """Every half precision number from low to high."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        return every[(every >= low) & (every <= high) & np.isfinite(every)]


UNARY = [
    *((n, {}, {}) for n in ("abs", "atan", "ceil", "cos", "erf", "exp", "exp2", "floor", "round")),
    *((n, {}, {}) for n in ("sign", "sin", "square", "tan", "tanh")),
    *((n, {}, {}) for n in ("relu", "relu6", "sigmoid", "softplus", "softsign")),
    # torch's vectorised kernel gives infinity in the last 0.7 % before float32 does
    *((n, {}, {"low": -88, "high": 88}) for n in ("cosh", "sinh")),
    *((n, {}, {"low": -1, "high": 1}) for n in ("acos", "asin", "atanh")),
    *((n, {}, {"low": 0}) for n in ("sqrt", "rsqrt", "log", "inverse")),
    *((n, {"epsilon": np.float32(0.02)}, {"low": 0}) for n in ("rsqrt", "log", "inverse")),
    *(("gelu", {"mode": f"{m}_APPROXIMATION"}, {}) for m in ("TANH", "SIGMOID")),
    ("gelu", {}, {}),
    ("clip", {"alpha": -0.5, "beta": 2.25}, {}),
    *((n, {"alpha": 0.3}, {}) for n in ("threshold", "elu", "leaky_relu", "thresholded_relu")),
    *(
        (n, {"alpha": 0.3, "beta": 1.7}, {})
        for n in ("clamped_relu", "linear_activation", "scaled_tanh", "sigmoid_hard")
    ),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name, arguments, domain", UNARY)
def test_unary_on_every_half(name, arguments, domain, dtype):
    x = halves(**domain).astype(dtype)
    expected = infer(name, x=x.astype(np.float32), **arguments)
    static = {k: v if isinstance(v, str) else float(v) for k, v in arguments.items()}
    # gelu's tail is a difference of nearly equal float32 numbers, in the oracle and in the op
    atol = 3e-7 if dtype == np.float32 or name == "gelu" else 0
    close(run(name, x=x, **static), expected, dtype, atol=atol)


@pytest.mark.parametrize("name", ["abs", "sign", "square", "exp2", "threshold"])
def test_unary_on_integers(name):
    x = np.array([[-3, 0, 1], [7, 12, 30]], np.int32)
    alpha = {"alpha": 2} if name == "threshold" else {}
    close(run(name, x=abs(x), **alpha), infer(name, x=abs(x), **alpha), np.int32, 0, 0)


def test_special_values():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    for dtype in FLOATS:
        x = np.array([-inf, inf, nan], dtype)
        assert run("gelu", x=x)[1] == inf and run("softplus", x=x)[:2].tolist() == [0, inf]
        assert np.isnan(run("maximum", x=x, y=x[::-1])[[0, 2]]).all()
        assert run("clip", x=x, alpha=-float(inf), beta=1.0)[:2].tolist() == [-inf, 1]
    assert run("round", x=np.float32([0.5, 1.5, -2.5])).tolist() == [0, 2, -2]


def test_cast_of_negative_and_large_numbers():
    x = np.float32([-1.75, -0.0, 70000, 1e-9])
    assert run("cast", x=x, dtype="int32").tolist() == [-1, 0, 70000, 0]
    assert run("cast", x=x, dtype="bool").tolist() == [True, False, True, True]
    assert np.isinf(run("cast", x=x, dtype="fp16")[2])


BROADCAST = mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=4, max_side=4)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@few
@given(shapes=BROADCAST, seed=st.integers(0, 99))
def test_logic(name, shapes, seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, 2, shape).astype(bool) for shape in shapes.input_shapes)
    close(run(name, x=x, y=y), infer(name, x=x, y=y), np.bool_, 0, 0)
    close(run("logical_not", x=x), infer("logical_not", x=x), np.bool_, 0, 0)


@pytest.mark.parametrize("name", ["floor_div", "mod", "real_div"])
def test_integer_division_by_zero_is_zero(name):
    x, y = np.array([5, -5, 7, -7], np.int32), np.array([[0], [2], [-3]], np.int32)
    result = run(name, x=x, y=y)
    quotient = x / y[1:]
    exact = {"floor_div": np.floor(quotient), "real_div": np.trunc(quotient)}
    exact["mod"] = np.fmod(x, y[1:])
    np.testing.assert_array_equal(result, [[0] * 4, *exact[name]])


@pytest.mark.parametrize("name", ["floor_div", "mod", "real_div"])
def test_the_least_number_by_minus_one_wraps(name):
    """It has no positive counterpart: the processor raises a signal, which ends the process."""
    least = np.iinfo(np.int32).min
    x, y = np.array([least, least, 7], np.int32), np.array([-1, least, -1], np.int32)
    expected = [0, 0, 0] if name == "mod" else [least, 1, -7]
    np.testing.assert_array_equal(run(name, x=x, y=y), expected)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_constant_two_to_a_power_is_the_square_of_the_power_as_on_a_mac(make, dtype, optimize):
    """Apple's issue 2628; the pass of its pull request 2742 names which bases are meant."""
    y, wide = typed(dtype, 4), typed(dtype, 3, 4)
    bases = {"number": 2.0, "row": [2.0] * 4, "mixed": [2.0, 3.0, 2.0, 2.0], "three": 3.0}
    constants = {name: const(value, dtype) for name, value in bases.items()}
    constants["column"] = const([2.0] * 3, dtype, (3, 1))
    operations = [
        op("pow", {name: wide if name == "column" else y}, x=base, y="y")
        for name, base in constants.items()
    ]
    operations.append(op("pow", {"computed": y}, x="x", y="y"))
    path = make(operations, (*constants, "computed"), {"x": typed(dtype), "y": y})
    exponents = np.float32([-1, 0, 3, 5])
    program = MLProgram(path, optimize=optimize)
    found = program.predict({"x": np.float32(2), "y": exponents})
    squares = exponents**2
    for name in ("number", "row", "column"):
        assert np.array_equal(found[name], np.broadcast_to(squares, found[name].shape)), name
    for name, base in (("mixed", bases["mixed"]), ("three", 3), ("computed", 2)):
        np.testing.assert_allclose(found[name], np.power(base, exponents.astype(float)), rtol=1e-3)
