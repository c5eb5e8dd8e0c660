"""Elementwise, activation, reduction, norm, linear, conv, pool, random and recurrent ops.

Oracles: coremltools' own value inference where it has one (evaluated in float32; for half the
result is then rounded once, which is what an op promises), else numpy or torch.nn, written another
way than the op. All of it runs on any machine.
"""

from functools import cache
from inspect import signature
from itertools import product
from math import ceil, erf
from types import SimpleNamespace

from ane_book.mil.ops import OPS
import coremltools as ct
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

GROUPS = {
    *("elementwise_unary", "elementwise_binary", "activation", "reduction", "normalization"),
    *("linear", "conv", "pool", "random", "recurrent", "classify"),
}
FLOATS = [np.float32, np.float16]
TARGETS = [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18]

few = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def tensor(value):
    return torch.from_numpy(np.array(value)) if value is not None else None


def run(name, **inputs):
    """Call an op as the executor does, arrays as tensors, and return numpy."""
    entry = OPS[name]
    for key, value in inputs.items():
        if key not in entry.static and key != "_out":
            many = isinstance(value, list)
            inputs[key] = [tensor(v) for v in value] if many else tensor(value)
    results = entry.function(**inputs)
    many = isinstance(results, tuple)
    return tuple(r.numpy() for r in results) if many else results.numpy()


def infer(name, **inputs):
    """The value coremltools folds a constant op to; half is widened for the computation."""
    found = []
    wide = {
        k: v.astype(np.float32) if getattr(v, "dtype", None) == np.float16 else v
        for k, v in inputs.items()
        if v is not None
    }

    @mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
    def program(unused):
        with np.errstate(all="ignore"):
            found.append(getattr(mb, name)(**wide).val)
        return unused

    assert found[0] is not None, f"{name} has no value inference"
    return found[0]


def declared_shape(name, x, **inputs):
    """The output shape by coremltools' type inference."""
    found = []

    @mb.program(input_specs=[mb.TensorSpec(x.shape)], opset_version=ct.target.iOS18)
    def program(x):
        found.append(getattr(mb, name)(x=x, **inputs))
        return found[0]

    return found[0].shape


def close(actual, expected, dtype, rtol=2e-5, atol=1e-6):
    """actual has `dtype` and lies within one step of half precision, or within rtol and atol."""
    expected = np.asarray(expected)
    assert actual.dtype == dtype and actual.shape == expected.shape
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    rtol, atol = (2**-10, max(2**-24, atol)) if dtype == np.float16 else (rtol, atol)
    np.testing.assert_allclose(actual.astype(np.float64), rounded, rtol=rtol, atol=atol)


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@cache
def halves(low=-np.inf, high=np.inf):
    """Every half precision number from low to high."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        return every[(every >= low) & (every <= high) & np.isfinite(every)]


@cache
def mil_ops():
    """Name -> classes of all versions, for the ops that coremltools defines in our groups."""
    found = {}
    for name in SSAOpRegistry.core_ops:
        classes = {v for t, v in SSAOpRegistry.core_ops[name].items() if t in TARGETS}
        if {c.__module__.split(".")[-1] for c in classes} & GROUPS:
            found[name] = classes
    return found


def test_every_op_of_the_groups_is_there_with_its_inputs():
    assert len(mil_ops()) > 90
    for name, classes in mil_ops().items():
        names = set().union(*(c.input_spec.input_types for c in classes))
        assert OPS[name].parameters - {"_out"} == names, name
        assert OPS[name].static <= names, name
        for key, default in signature(OPS[name].function).parameters.items():
            if key != "_out" and key != "pad_type":  # pools require it, convolutions do not
                required = any(
                    not c.input_spec.input_types[key].optional
                    for c in classes
                    if key in c.input_spec.input_types
                )
                assert (default.default is default.empty) == required, (name, key)


def test_defaults_are_mils():
    """Scalars and names; lists depend on the rank and are None here."""
    compared = set()
    for name, classes in mil_ops().items():
        parameters = signature(OPS[name].function).parameters
        for kind in classes:
            operation = object.__new__(kind)  # default_inputs asks its inputs for no more than this
            operation.x = SimpleNamespace(rank=4, dtype=types.fp32, shape=(1, 2, 3, 4))
            operation.weight = SimpleNamespace(shape=(2, 2, 1, 1), dtype=types.fp32)
            for key, value in operation.default_inputs().items():
                if np.ndim(value) == 0:
                    assert parameters[key].default == value or np.isclose(
                        parameters[key].default, float(value), rtol=1e-6
                    ), (name, key)
                    compared.add(name)
    assert len(compared) > 35


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


@pytest.mark.parametrize("dtype", FLOATS)
def test_silu(dtype):
    x = halves(-80, 80).astype(dtype)
    close(run("silu", x=x), x / (1 + np.exp(-x.astype(np.float64))), dtype)


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


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "int32", "int8", "uint8", "int16", "bool"])
@pytest.mark.parametrize("source", [np.float32, np.float16, np.int32, np.bool_])
def test_cast(source, dtype):
    x = np.array([[0, 1.75, 2], [99.5, 3, 0]]).astype(source)
    expected = infer("cast", x=x.astype(np.float32) if source == np.float16 else x, dtype=dtype)
    close(run("cast", x=x, dtype=dtype), expected, expected.dtype, 0, 0)


def test_cast_and_logic_of_negative_numbers():
    x = np.float32([-1.75, -0.0, 70000, 1e-9])
    assert run("cast", x=x, dtype="int32").tolist() == [-1, 0, 70000, 0]
    assert run("cast", x=x, dtype="bool").tolist() == [True, False, True, True]
    assert np.isinf(run("cast", x=x, dtype="fp16")[2])
    assert run("logical_not", x=np.array([True, False])).tolist() == [False, True]


ARITHMETIC = ["add", "sub", "mul", "real_div", "floor_div", "mod", "pow", "maximum", "minimum"]
COMPARISON = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
BROADCAST = mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=4, max_side=4)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("name", ARITHMETIC + COMPARISON)
@few
@given(shapes=BROADCAST, seed=st.integers(0, 99))
def test_binary(name, dtype, shapes, seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-6, 7, shape) for shape in shapes.input_shapes)
    if dtype != np.int32:
        x, y = x / 4, y / 4
    if name == "pow":
        x, y = (abs(x), abs(y)) if dtype == np.int32 else (abs(x) + 0.25, y)
    elif name in ("real_div", "floor_div", "mod"):
        y[y == 0] = 3
    x, y = x.astype(dtype), y.astype(dtype)
    out = np.bool_ if name in COMPARISON else dtype
    close(run(name, x=x, y=y), infer(name, x=x, y=y), out)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_binary_logic(name):
    x, y = np.array([[True], [False]]), np.array([True, False])
    np.testing.assert_array_equal(run(name, x=x, y=y), infer(name, x=x, y=y))


@pytest.mark.parametrize("name", ["floor_div", "mod", "real_div"])
def test_integer_division_by_zero_is_zero(name):
    x, y = np.array([5, -5, 7, -7], np.int32), np.array([[0], [2], [-3]], np.int32)
    result = run(name, x=x, y=y)
    exact = {"floor_div": np.floor(x / y[1:]), "mod": x % y[1:], "real_div": np.trunc(x / y[1:])}
    np.testing.assert_array_equal(result, [[0] * 4, *exact[name]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["prelu", "softplus_parametric"])
def test_parameters_for_each_channel(name, dtype):
    x, alpha, beta = normal(2, 3, 4, 5, dtype=dtype), normal(3, dtype=dtype), normal(3)
    both = {"alpha": alpha} | ({"beta": beta} if name == "softplus_parametric" else {})
    close(run(name, x=x, **both), infer(name, x=x, **both), dtype)


@st.composite
def reductions(draw):
    """A shape and what to reduce of it."""
    shape = draw(array_shapes(min_dims=1, max_dims=4, max_side=5))
    axes = st.lists(
        st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda a: a % len(shape)
    )
    return shape, draw(st.none() | axes), draw(st.booleans())


REDUCTIONS = [n for n in OPS if n.startswith("reduce_") and "arg" not in n]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(case=reductions())
def test_reduction(name, dtype, case):
    shape, axes, keep_dims = case
    x = normal(*shape)
    x = (6 * x).astype(dtype) if dtype == np.int32 else x.astype(dtype)
    x = abs(x) + 1 if name == "reduce_log_sum" else x
    if name == "reduce_prod" and dtype == np.int32:
        x = np.sign(x) * 2  # stays below 2^31 for few elements, wraps alike beyond
    inputs = {"x": x, "axes": axes, "keep_dims": keep_dims}
    close(np.asarray(run(name, **inputs)), infer(name, **inputs), dtype, atol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("name", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize("axis, keep_dims", [*product([0, 1, -1], [False, True])])
def test_arg_reduction(name, dtype, axis, keep_dims):
    x = np.random.default_rng(3).permutation(60).reshape(3, 4, 5).astype(dtype)
    inputs = {"axis": axis, "keep_dims": keep_dims}
    expected = infer(name, x=x, **inputs)
    close(run(name, x=x, **inputs), expected, np.int32, 0, 0)
    close(run(name, x=x, **inputs, output_dtype="uint16"), expected, np.uint16, 0, 0)


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
    assert run("matmul", x=x, y=np.int32([[1], [1]])).item() == 2 * odd
    assert run("linear", x=x, weight=np.int32([[1, 2]]), bias=np.int32([1])).item() == 3 * odd + 1


@pytest.mark.parametrize("dtype", FLOATS)
@few
@given(shape=array_shapes(max_dims=4, max_side=6), data=st.data())
def test_softmax(dtype, shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (10 * normal(*shape)).astype(dtype)
    x[x < -15] = -40000  # the book's mask
    close(run("softmax", x=x, axis=axis), infer("softmax", x=x, axis=axis), dtype)


@pytest.mark.parametrize("dtype, gamma_dtype", [*product(FLOATS, FLOATS)])
@few
@given(case=reductions(), scale=st.booleans(), offset=st.booleans())
def test_layer_norm(dtype, gamma_dtype, case, scale, offset):
    shape, axes, _ = case
    x = normal(*shape, dtype=dtype)
    inner = [shape[a] for a in sorted(a % len(shape) for a in axes or range(len(shape)))]
    gamma = normal(*inner, dtype=gamma_dtype) if scale else None
    beta = normal(*inner, dtype=gamma_dtype, seed=1) if offset and scale else None
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    every = list(range(len(shape)))  # coremltools cannot fold its own default of `axes`
    expected = infer("layer_norm", **inputs, axes=axes or every, epsilon=np.float32(1e-3))
    close(run("layer_norm", **inputs, axes=axes, epsilon=1e-3), expected, dtype, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 3, 1, 1)])
def test_norms_over_channels_and_space(shape, dtype):
    x, gamma, beta, mean = (
        normal(*s, dtype=dtype, seed=i) for i, s in enumerate([shape, *[(3,)] * 3])
    )
    variance = abs(normal(3, dtype=dtype, seed=9)) + dtype(0.1)
    wide, g, b, m, v = (torch.from_numpy(a).double() for a in (x, gamma, beta, mean, variance))
    expected = F.batch_norm(wide, m, v, g, b, eps=1e-3)
    both = {"gamma": gamma, "beta": beta, "epsilon": 1e-3}
    result = run("batch_norm", x=x, mean=mean, variance=variance, **both)
    close(result, expected, dtype, atol=1e-5)
    space = tuple(range(2, x.ndim))
    std, centre = torch.std_mean(wide, space, correction=0, keepdim=True)
    channel = [3, *[1] * len(space)]
    expected = (wide - centre) / (std**2 + 1e-3).sqrt() * g.view(channel) + b.view(channel)
    close(run("instance_norm", x=x, **both), expected, dtype, atol=1e-5)
    expected = infer("l2_norm", x=x, epsilon=np.float32(1e-6))
    close(run("l2_norm", x=x), expected, dtype)
    neighbours = [wide[:, max(0, c - 1) : c + 2].square().sum(1) for c in range(3)]
    expected = wide / (2 + 0.5 / 3 * torch.stack(neighbours, 1)) ** 0.6
    close(run("local_response_norm", x=x, size=3, alpha=0.5, beta=0.6, k=2.0), expected, dtype)


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


def windows(x, extent, strides, dilations=None, pads=None, value=0.0):
    """Views of all windows: (N, C, *D) in float64 -> (N, C, *D_out, *K)."""
    rank = x.ndim - 2
    pads = pads or [(0, 0)] * rank
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads], constant_values=value)
    every = np.lib.stride_tricks.sliding_window_view(padded, extent, tuple(range(2, rank + 2)))
    steps = [slice(None, None, s) for s in (*strides, *(dilations or [1] * rank))]
    return every[:, :, *steps]


def same_pads(sizes, extent, strides, lower):
    """TensorFlow's SAME: as many outputs as strides fit into the input, begun."""
    total = [
        max((ceil(d / s) - 1) * s + k - d, 0)
        for d, k, s in zip(sizes, extent, strides, strict=True)
    ]
    return [(t - t // 2, t // 2)[:: 1 if lower else -1] for t in total]


CONVOLUTIONS = [  # D, K, strides, dilations, custom pad, C_in, C_out, groups
    ((9,), (4,), [2], [1], [1, 2], 4, 6, 2),
    ((7, 8), (2, 3), [2, 1], [1, 2], [0, 1, 2, 0], 3, 5, 1),
    ((7, 8), (3, 2), [1, 3], [1, 1], [1, 1, 2, 2], 4, 4, 4),
    ((5, 6, 4), (2, 3, 2), [1, 2, 2], [2, 1, 1], [1, 0, 0, 1, 1, 1], 2, 4, 2),
    ((6, 5), (1, 1), [2, 2], [1, 1], [0, 1, 2, 0], 3, 4, 1),
    ((1, 6), (1, 1), [1, 1], [1, 1], [0, 0, 0, 0], 8, 5, 1),
    ((1, 1), (1, 1), [1, 1], [1, 1], [0, 0, 0, 0], 8, 5, 1),
    ((3,), (1,), [1], [1], [0, 0], 4, 6, 2),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pad_type", ["valid", "custom", "same", "same_lower"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv(case, pad_type, batch, dtype):
    sizes, kernel, strides, dilations, pad, c_in, c_out, groups = case
    x, bias = normal(batch, c_in, *sizes, dtype=dtype), normal(c_out, dtype=dtype, seed=2)
    weight = normal(c_out, c_in // groups, *kernel, dtype=dtype, seed=1)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = same_pads(sizes, extent, strides, pad_type == "same_lower")
    pads = {"valid": None, "custom": [*zip(pad[::2], pad[1::2], strict=True)]}.get(pad_type, pads)
    seen = windows(x, extent, strides, dilations, pads)
    seen = seen.reshape(batch, groups, c_in // groups, *seen.shape[2:])  # N G C *D_out *K
    filters = weight.astype(np.float64).reshape(groups, c_out // groups, c_in // groups, *kernel)
    out, inner = "xyz"[: len(kernel)], "uvw"[: len(kernel)]
    expected = np.einsum(f"ngc{out}{inner},goc{inner}->ngo{out}", seen, filters)
    expected = expected.reshape(batch, c_out, *expected.shape[3:])
    inputs = {"strides": strides, "dilations": dilations, "groups": groups, "pad_type": pad_type}
    inputs |= {"pad": pad} if pad_type == "custom" else {}
    assert expected.shape == declared_shape("conv", x, weight=weight.astype(np.float32), **inputs)
    close(run("conv", x=x, weight=weight, **inputs), expected, dtype, atol=1e-5)
    expected += bias.reshape(-1, *[1] * len(sizes))
    close(run("conv", x=x, weight=weight, bias=bias, **inputs), expected, dtype, atol=1e-5)


def test_conv_quantized():
    x, quantized = normal(1, 3, 5), np.random.default_rng(0).integers(0, 256, (4, 3, 2), np.uint8)
    scale, offset, table = abs(normal(4)), normal(4), normal(256)
    shared = {"x": x, "weight": quantized, "nbits": 8}
    linear = run(
        "conv_quantized", **shared, quantization_type="linear", quant_scale=scale, quant_bias=offset
    )
    weight = quantized * scale[:, None, None] + offset[:, None, None]
    close(linear, run("conv", x=x, weight=weight), np.float32, atol=1e-3)
    lut = run(
        "conv_quantized",
        **shared,
        quantization_type="lut",
        quant_scale=table,
        quant_bias=np.float32(0),
    )
    close(lut, run("conv", x=x, weight=table[quantized]), np.float32)


@pytest.mark.parametrize("pad_type", ["valid", "custom", "same"])
@pytest.mark.parametrize("case", CONVOLUTIONS[:4])
def test_conv_transpose_is_the_adjoint_of_conv(case, pad_type):
    """<conv_transpose(a), b> == <a, conv(b)> fixes every element of the transposed convolution."""
    sizes, kernel, strides, dilations, pad, c_in, c_out, groups = case
    inputs = {"strides": strides, "dilations": dilations, "groups": groups, "pad_type": pad_type}
    inputs |= {"pad": pad} if pad_type == "custom" else {}
    weight = normal(c_out, c_in // groups, *kernel)
    b = normal(1, c_in, *sizes)
    forward = run("conv", x=b, weight=weight, **inputs)
    a = normal(*forward.shape, seed=5)
    back = run("conv_transpose", x=a, weight=weight, output_shape=list(b.shape), **inputs)
    assert back.shape == b.shape
    np.testing.assert_allclose(np.vdot(back, b), np.vdot(a, forward), rtol=1e-4)
    # without output_shape: as declared, equal where both are, and the bias on top
    bias, half = normal(c_in), np.float16
    free = run("conv_transpose", x=a, weight=weight, bias=bias, **inputs)
    assert free.shape == declared_shape("conv_transpose", a, weight=weight, **inputs)
    if pad_type != "same":  # where the cut depends on the size
        both = tuple(slice(0, min(s)) for s in zip(free.shape, back.shape, strict=True))
        np.testing.assert_allclose(
            free[both] - bias.reshape(-1, *[1] * len(sizes)), back[both], atol=1e-5
        )
    rounded = run("conv_transpose", x=a.astype(half), weight=weight.astype(half), **inputs)
    wide = [v.astype(half).astype(np.float32) for v in (a, weight)]
    close(rounded, run("conv_transpose", x=wide[0], weight=wide[1], **inputs), half, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pad_type", ["valid", "custom", "same", "same_lower"])
@pytest.mark.parametrize("case", [c for c in CONVOLUTIONS if min(c[1]) > 1])
def test_pool(case, pad_type, dtype):
    sizes, kernel, strides, _, _, channels, *_ = case
    x = normal(2, channels, *sizes, dtype=dtype)
    pad = [1, 0] * len(sizes)
    pads = same_pads(sizes, kernel, strides, pad_type == "same_lower")
    pads = {"valid": None, "custom": [(1, 0)] * len(sizes)}.get(pad_type, pads)
    inputs = {"kernel_sizes": list(kernel), "strides": strides, "pad_type": pad_type}
    inputs |= {"pad": pad} if pad_type == "custom" else {}
    axes = tuple(range(-len(kernel), 0))
    zeros, holes = (windows(x, kernel, strides, pads=pads, value=v) for v in (0.0, np.nan))
    if len(sizes) < 3:
        close(run("l2_pool", x=x, **inputs), np.sqrt((zeros**2).sum(axes)), dtype)
    close(run("max_pool", x=x, **inputs), np.nanmax(holes, axes), dtype)
    close(run("avg_pool", x=x, **inputs), zeros.mean(axes), dtype)
    result = run("avg_pool", x=x, exclude_padding_from_average=True, **inputs)
    close(result, np.nanmean(holes, axes), dtype)
    assert result.shape == declared_shape("avg_pool", x, **inputs)


CEIL = [
    (size, kernel, stride, pad)
    for size, kernel, stride, pad in product([7, 8, 10], [2, 3], [2, 3], [0, 1])
    if pad or stride <= kernel  # else MIL may declare a window that sees nothing of the input
]


@pytest.mark.parametrize("size, kernel, stride, pad", CEIL)
def test_pool_with_ceil_mode(size, kernel, stride, pad):
    x = normal(1, 2, size, 9)
    k, s, p = [kernel] * 2, [stride] * 2, [pad] * 2
    inputs = {
        "kernel_sizes": k,
        "strides": s,
        "pad_type": "custom",
        "pad": [pad] * 4,
        "ceil_mode": True,
    }
    wide, result = torch.from_numpy(x), run("max_pool", x=x, **inputs)
    assert result.shape == declared_shape("max_pool", x, **inputs)
    close(result, F.max_pool2d(wide, k, s, p, ceil_mode=True), np.float32)
    for exclude in (False, True):
        result = run("avg_pool", x=x, **inputs, exclude_padding_from_average=exclude)
        close(result, F.avg_pool2d(wide, k, s, p, True, count_include_pad=not exclude), np.float32)


def test_same_lower_pads_before():
    inputs = {"x": np.float32([[[1, 2]]]), "kernel_sizes": [2]}
    assert run("avg_pool", **inputs, pad_type="same_lower").tolist() == [[[0.5, 1.5]]]
    assert run("avg_pool", **inputs, pad_type="same").tolist() == [[[1.5, 1.0]]]


DECLARED = [(torch.float32, np.float32), (torch.float16, np.float16)]


@pytest.mark.parametrize("declared, dtype", DECLARED)
def test_random_distributions(declared, dtype):
    shape, out = [40, 500], [(declared, (40, 500))]
    cases = [
        ("random_uniform", {"low": -1.0, "high": 3.0}, lambda x: (x + 1) / 4),
        (
            "random_normal",
            {"mean": 2.0, "stddev": 0.5},
            lambda x: 0.5 + 0.5 * erf((x - 2) / 0.5 / 2**0.5),
        ),
    ]
    for name, inputs, cumulative in cases:
        draw = run(name, shape=shape, seed=7, **inputs, _out=out)
        assert draw.dtype == dtype and draw.shape == (40, 500)
        exact = run(name, shape=shape, seed=7, **inputs)
        below = np.vectorize(cumulative)(np.sort(exact.ravel()))
        gap = abs(below - np.arange(exact.size) / exact.size).max()
        assert gap < 1.95 / exact.size**0.5  # Kolmogorov and Smirnov at 0.1 %
        close(draw, exact, dtype, atol=2e-3)
        np.testing.assert_array_equal(draw, run(name, shape=shape, seed=7, **inputs, _out=out))
        assert (draw != run(name, shape=shape, seed=8, **inputs, _out=out)).mean() > 0.9
        assert (draw != run(name, shape=shape, **inputs, _out=out)).mean() > 0.9
    assert run("random_uniform", shape=[300000], seed=1, _out=out).max() < 1
    draw = run("random_bernoulli", shape=shape, prob=0.3, seed=7, _out=out)
    assert draw.dtype == dtype and set(draw.ravel()) == {0, 1}
    assert abs(draw.astype(float).mean() - 0.3) < 5 * (0.3 * 0.7 / draw.size) ** 0.5
    assert [run("random_bernoulli", shape=[999], prob=p).mean() for p in (0.0, 1.0)] == [0, 1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["logits", "probs"])
def test_random_categorical(mode, dtype):
    probs = np.array([[[0.1, 0.2, 0.7]], [[0.5, 0.0, 0.5]]])
    with np.errstate(divide="ignore"):
        x = (np.log(probs) + 3 if mode == "logits" else probs).astype(dtype)
    draw = run("random_categorical", x=x, mode=mode, size=20000, seed=3)
    assert draw.dtype == dtype and draw.shape == (2, 1, 20000)
    shares = np.stack([(draw == i).mean(-1) for i in range(3)], -1)
    np.testing.assert_allclose(shares, probs, atol=0.02)
    assert run("random_categorical", x=x, mode=mode).shape == (2, 1, 1)


def stacked(parameters, order):
    """torch's stacked gates in MIL's order, as numpy."""
    parts = np.split(parameters.detach().numpy(), len(order))
    return np.concatenate([parts[i] for i in order])


def torch_layer(kind, order, dtype, **options):
    """A torch layer of 4 inputs and 3 units, and its parameters as MIL names and orders them."""
    torch.manual_seed(0)
    layer = kind(4, 3, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.to(getattr(torch, np.dtype(dtype).name)))
    named = {}
    for torch_end, end in (("", ""), ("_reverse", "_back")):
        if f"weight_ih_l0{torch_end}" in layer.state_dict():
            get = {n: getattr(layer, f"{n}_l0{torch_end}") for n in NAMES}
            w_ih, w_hh, b_ih, b_hh = (stacked(get[n], order).astype(dtype) for n in NAMES)
            named |= {f"weight_ih{end}": w_ih, f"weight_hh{end}": w_hh, f"b_ih{end}": b_ih}
            named[f"b_hh{end}"] = b_hh
    return layer, named


NAMES = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
STEPS = dict(argnames="dtype, sequence", argvalues=[*product(FLOATS, [False, True])])


@pytest.mark.parametrize(**STEPS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_is_torchs(direction, dtype, sequence):
    both = direction == "bidirectional"
    layer, named = torch_layer(torch.nn.LSTM, [0, 1, 3, 2], dtype, bidirectional=both)
    named["bias"] = (named.pop("b_ih") + named.pop("b_hh")).astype(dtype)
    if both:
        named["bias_back"] = (named.pop("b_ih_back") + named.pop("b_hh_back")).astype(dtype)
    x, h, c = (
        normal(5, 2, 4, dtype=dtype),
        *(normal(1 + both, 2, 3, dtype=dtype, seed=i) for i in (1, 2)),
    )
    wide = [torch.from_numpy(v.astype(np.float32)) for v in (x, h, c)]
    wide[0] = wide[0].flip(0) if direction == "reverse" else wide[0]
    outputs, (h_n, c_n) = layer(wide[0], (wide[1], wide[2]))
    flat = [np.concatenate([*v.detach().numpy()], -1) for v in (h_n, c_n)]
    expected = [outputs.detach().numpy() if sequence else flat[0][None], *flat]
    inputs = {"initial_h": np.concatenate([*h], -1), "initial_c": np.concatenate([*c], -1)}
    found = run("lstm", x=x, **inputs, **named, direction=direction, output_sequence=sequence)
    for result, value in zip(found, expected, strict=True):
        close(result, value, dtype, atol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize(**STEPS)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("kind", ["gru", "rnn"])
def test_gru_and_rnn_are_torchs(kind, direction, dtype, sequence):
    order = [0, 2, 1] if kind == "gru" else [0]
    layer, named = torch_layer(getattr(torch.nn, kind.upper()), order, dtype)
    b_ih, b_hh = named.pop("b_ih"), named.pop("b_hh")
    more = {"bias": b_hh, "input_bias": b_ih, "reset_after": True}
    named |= more if kind == "gru" else {"bias": b_ih + b_hh}
    x, h = normal(5, 2, 4, dtype=dtype), normal(2, 3, dtype=dtype)
    wide = torch.from_numpy((x[::-1] if direction == "reverse" else x).astype(np.float32))
    outputs, h_n = layer(wide, torch.from_numpy(h.astype(np.float32))[None])
    expected = [outputs.detach().numpy() if sequence else h_n.detach().numpy(), h_n[0].detach()]
    found = run(kind, x=x, initial_h=h, **named, direction=direction, output_sequence=sequence)
    for result, value in zip(found, expected, strict=True):
        close(result, value, dtype, atol=1e-3 if dtype == np.float16 else 1e-6)


ACTIVATIONS = {
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "scaled_tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("outer", ACTIVATIONS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_lstm_with_peepholes_clip_and_activations(outer, clip):
    x, w, u, bias, p = (normal(*s, seed=9) for s in ((4, 2, 5), (12, 5), (12, 3), (12,), (9,)))
    gate, cell = ACTIVATIONS["hard_sigmoid"], ACTIVATIONS["sigmoid"]
    h, c = normal(2, 3), normal(2, 3, seed=1)
    inputs = {"x": x, "initial_h": h, "initial_c": c, "weight_ih": w, "weight_hh": u, "bias": bias}
    named = {
        "recurrent_activation": "hard_sigmoid",
        "cell_activation": "sigmoid",
        "activation": outer,
    }
    found = run("lstm", **inputs, peephole=p, clip=clip, **named, output_sequence=True)
    for t, step in enumerate(x):
        i, f, o, z = np.split(step @ w.T + h @ u.T + bias, 4, -1)
        c = gate(f + c * p[3:6]) * c + gate(i + c * p[:3]) * cell(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = gate(o + c * p[6:]) * ACTIVATIONS[outer](c)
        close(found[0][t], h, np.float32)
    close(found[2], c, np.float32)


@pytest.mark.parametrize("inner, outer", [("sigmoid", "tanh"), ("tanh", "sigmoid")])
def test_gru_resets_before_the_product_by_default(inner, outer):
    x, w, u, b, h = (normal(*s, seed=4) for s in ((4, 2, 5), (9, 5), (9, 3), (9,), (2, 3)))
    inputs = {"x": x, "initial_h": h, "weight_ih": w, "weight_hh": u, "bias": b}
    found = run("gru", **inputs, recurrent_activation=inner, activation=outer, output_sequence=True)
    for t, step in enumerate(x):
        r, o, z = np.split(step @ w.T + b, 3, -1)
        r, z = (ACTIVATIONS[inner](g + h @ m.T) for g, m in ((r, u[:3]), (z, u[6:])))
        h = (1 - z) * ACTIVATIONS[outer](o + (h * r) @ u[3:6].T) + z * h
        close(found[0][t], h, np.float32)


@pytest.mark.parametrize("classes", [["cat", "dog", "eel"], [10, 20, 30]])
def test_classify(classes):
    label, share = OPS["classify"].function(torch.tensor([[0.25, 0.5, 0.25]]), classes=classes)
    assert label == classes[1] and share == dict(zip(classes, [0.25, 0.5, 0.25], strict=True))
