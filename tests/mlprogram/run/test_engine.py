"""precision="ane": each published fault of the engine, by the source's own cases and a rule."""

from ane_book.cli import app
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.ane.claims import find
from mlprogram.compare.packages import compare_packages
from mlprogram.errors import InvalidInput
from mlprogram.ops import OPS
from mlprogram.package.function import Operation
from mlprogram.package.values import TensorType
from mlprogram.run.engine import ROUNDED, as_engine
from mlprogram.run.native_forms import FORMS
from mlprogram.run.precision import FAULTS, described, faults_of
from mlprogram.run.products_summed import LOST, SUMS
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

N = 64
MAC = {"accumulator", "products", "rounding"}  # what was measured together, on M4 and M6


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Sums of x and of its squares by three ops, a mean, x plus one, and four activations."""
    shape = mb.TensorSpec((1, N, 1, 1), dtype=types.fp16)

    @mb.program(input_specs=[shape], opset_version=ct.target.iOS18)
    def built(x):
        ones = np.ones((2, N, 1, 1), np.float16)
        row = mb.reshape(x=x, shape=(1, N))
        forms = [getattr(mb, kind)(x=x, name=kind) for kind in ("silu", "sigmoid", "tanh")]
        return (
            mb.conv(x=x, weight=ones, pad_type="valid", name="conv"),
            mb.linear(x=row, weight=ones[:, :, 0, 0], name="linear"),
            mb.matmul(x=row, y=row, transpose_y=True, name="square"),
            mb.reduce_mean(x=row, axes=[1], name="mean"),
            mb.add(x=x, y=np.float16(1), name="more"),
            mb.softplus(x=x, name="softplus"),
            mb.gelu(x=x, mode="EXACT", name="gelu"),
            *forms,
        )

    path = tmp_path_factory.mktemp("engine") / "sums.mlpackage"
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(built, compute_precision=ct.precision.FLOAT32, **options).save(str(path))
    return path


def run(path, value, *precisions):
    x = np.full((1, N, 1, 1), value, np.float16)
    return [MLProgram(path, precision=p).predict({"x": x}) for p in precisions]


def op(kind, faults, **given):
    """One op with these faults, on half tensors."""
    operation = Operation(kind, kind, {}, [("y", TensorType("fp16", ()))], [])
    return as_engine(operation, OPS[kind].function, frozenset(faults))(**given)


def half(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).half()


def product(faults, x, w, bias=None):
    """Of numbers: the sum of x * w, by the op `linear`."""
    bias = None if bias is None else half(bias)
    y = op("linear", faults, x=half(*x)[None], weight=half(*w)[None], bias=bias)
    return float(y)


# --- the source's own cases -----------------------------------------------------------------------

LSB = 2.0**-16
#: x, weights and bias, with what an M6 gave: notes/numerics.md@60d79c2, its tables of sums.
SUMS_SEEN = [
    ([32752], [1], None, 32752),
    ([32768], [1], None, np.inf),
    ([16384, 16376], [1, 1], None, 32768),
    ([16384, 16384], [1, 1], None, np.inf),
    ([16384, LSB, -16384], [1, 1, 1], None, LSB),
    ([16384, 2.0**-18, -16384], [1, 1, 1], None, 0),
    ([2.0**-17], [1], None, LSB),
    ([2.0**-18], [1], None, 0),
    ([2048, 1], [1, 1], None, 2050),
    ([-4096, -2], [1, 1], None, -4100),
    ([65504], [2.0**-4], None, 4094),
    ([16384, 16384], [1, 1], -16384, 16384),
    ([16384] * 3, [1] * 3, -16384, np.inf),
    ([32752], [1], 32, np.inf),
    ([0], [1], 2.0**-20, 0),
    ([0], [1], 2.0**-17, LSB),
    ([2.0**-17], [1], 2.0**-17, 2 * LSB),
    ([0.25], [1], 1000.5, 1001),
    ([1.875 * 2.0**-14], [1.875 / 8], None, 0),
    ([1.99 * 2.0**-14], [1.99 / 8], None, 0),
    ([1.9 * 2.0**-13], [1.5 / 16], None, 0),
    ([0.99 * 2.0**-14], [0.2], None, 0),
    ([1.5 * 2.0**-13], [0.125], None, 2 * LSB),
    ([0.5 * 2.0**-14], [0.25], None, LSB),
    ([np.inf], [1], None, np.inf),
    ([np.nan], [0.25], None, 24576),
]


@pytest.mark.parametrize("x, w, bias, seen", SUMS_SEEN)
def test_sums_of_products_are_what_an_m6_gave(x, w, bias, seen):
    assert product(MAC | {"nonfinite"}, x, w, bias) == seen


@pytest.mark.parametrize(
    "kind, x, y, seen",
    [
        ("add", 2048, 1, 2050),
        ("add", 65504, 0, 65504),
        ("add", 16384, 16384, 32768),
        ("add", 2.0**-24, 0, 2.0**-24),
        ("mul", 2.0**-12, 2.0**-12, 2.0**-24),
        ("mul", 256, 256, np.inf),
        ("add", np.nan, 1, np.inf),
    ],
)
def test_elementwise_ops_are_what_an_m6_gave(kind, x, y, seen):
    assert float(op(kind, set(FAULTS), x=half(x), y=half(y))) == seen


#: The largest error that was measured of each form, with fp16's own rounding of the result.
@pytest.mark.parametrize(
    "kind, reach, seen",
    [("sigmoid", 10, 3.355e-3), ("tanh", 6, 1.613e-3), ("silu", 10, 1.491e-2), ("gelu", 8, 6.2e-3)],
)
def test_forms_are_as_far_off_as_was_measured(kind, reach, seen):
    exact = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
    }[kind]
    x = torch.arange(-reach, reach, 2.0**-9).half()
    error = (op(kind, {kind}, x=x).double() - exact(x.double())).abs().max().item()
    assert seen * 0.9 < error < seen * 1.1
    beyond = half(-12, 12)
    expected = {"sigmoid": [0, 1], "tanh": [-1, 1]}.get(kind, [0, 12])
    assert op(kind, {kind}, x=beyond).tolist() == expected


def test_silu_is_off_near_zero_as_was_measured_and_its_form_by_tanh_is_not():
    x = torch.linspace(-0.04, 0.04, 801).half()  # mean |silu| 0.010
    exact = torch.nn.functional.silu(x.double())
    assert 0.008 < exact.abs().mean() < 0.0102
    native = (op("silu", FAULTS, x=x).double() - exact).abs().mean()
    assert 0.5 < native / find("silu-small").value < 2  # 0.0011 was measured
    tanh = op("tanh", FAULTS, x=x * 0.5).double()
    assert (0.5 * x.double() * (1 + tanh) - exact).abs().max() < 1e-5


def test_softplus_is_zero_where_its_power_overflows():
    x = half(0, 9.9, 11, 11.2, 20)
    y = op("softplus", {"softplus"}, x=x)
    torch.testing.assert_close(y[:3], torch.nn.functional.softplus(x)[:3])
    assert y[3:].tolist() == [0, 0] and 11 <= find("softplus-large").value < 11.2


# --- against the rule, in float64 -----------------------------------------------------------------


def by_rule(a, b, faults, bias=0.0):
    """A sum over the last axis of a * b, halves as float64, one product at a time."""
    each = a * b
    if "products" in faults:
        exponents = [np.frexp(np.maximum(np.abs(m), 2.0**-14))[1] - 1 for m in (a, b)]
        each = np.where(exponents[0] + exponents[1] <= -17, 0, each)
    if "accumulator" not in faults:
        return each.sum(-1) + bias
    steps = [np.trunc(m / LSB + np.copysign(0.5, m)) for m in (each, np.asarray(bias))]
    y = (steps[0].sum(-1) + steps[1]) * LSB
    return np.where(np.abs(y) >= LOST, np.copysign(np.inf, y), y)


@pytest.mark.parametrize("faults", [{"accumulator"}, {"products"}, {"accumulator", "products"}])
@pytest.mark.parametrize("scale", [2.0**-8, 1, 2.0**7])
def test_every_op_that_sums_products_follows_the_rule(faults, scale):
    rng = torch.Generator().manual_seed(0)

    def random(*shape):
        spread = torch.exp2(torch.randint(-8, 3, shape, generator=rng).float())
        return (torch.randn(shape, generator=rng) * spread * scale).half()

    def hold(found, expected):
        expected = torch.tensor(np.array(expected)).half()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

    x, weight, bias = random(3, 70), random(5, 70), random(5)
    by = {"a": x.double().numpy()[:, None], "b": weight.double().numpy()[None]}
    expected = by_rule(by["a"], by["b"], faults, bias.double().numpy())
    hold(op("linear", faults, x=x, weight=weight, bias=bias), expected)
    columns = {"x": x.T.reshape(1, 70, 1, 3), "weight": weight.reshape(5, 70, 1, 1)}
    hold(op("conv", faults, bias=bias, **columns), expected.T.reshape(1, 5, 1, 3))
    expected = by_rule(by["a"], by["b"], faults)
    hold(op("matmul", faults, x=x, y=weight, transpose_y=True), expected)
    batches = torch.stack([x, x])[:, None], weight.T[None, None]
    hold(op("matmul", faults, x=batches[0], y=batches[1]), np.stack([expected] * 2)[:, None])
    hold(op("matmul", faults, x=x[0], y=weight[0]), expected[0, 0])
    pair = [x.T.reshape(70, 1, 3).permute(2, 1, 0), weight.T.reshape(70, 1, 5)]  # chw, whr
    hold(op("einsum", faults, values=pair, equation="chw,whr->chr"), expected[:, None])


def test_the_windows_of_a_convolution_are_torchs():
    rng = torch.Generator().manual_seed(1)
    for D, more in (
        ((9,), {"strides": [2], "pad_type": "same"}),
        ((9, 8), {"pad_type": "custom", "pad": [1, 2, 0, 3], "dilations": [2, 1], "groups": 2}),
        ((5, 6, 7), {"strides": [1, 2, 3]}),
    ):
        x = torch.randint(-4, 5, (2, 4, *D), generator=rng).half()
        channels = 4 // more.get("groups", 1)
        weight = torch.randint(-4, 5, (6, channels, *[3] * len(D)), generator=rng).half()
        given = {"x": x, "weight": weight, "bias": torch.arange(6).half(), **more}
        plain = op("conv", set(), **given)  # small integers: exact either way
        torch.testing.assert_close(op("conv", MAC, **given), plain, rtol=0, atol=0)


def test_rounding_goes_away_from_zero_at_halves_alone():
    rng = torch.Generator().manual_seed(2)
    x, y = (torch.randn(10_000, generator=rng).mul(2.0**n).half() for n in (3, -4))
    even, far = op("add", set(), x=x, y=y), op("add", {"rounding"}, x=x, y=y)
    exact, moved = x.double() + y.double(), even != far
    tie = (exact - even.double()).abs() == (exact - far.double()).abs()
    assert moved.sum() > 100 and tie[moved].all()
    assert (far[moved].abs() > even[moved].abs()).all()
    assert (half(2.0**-24 + 2.0**-25) == 2.0**-23).all()  # a tie of torch's own, to even


def test_subnormal_sums_are_flushed_and_others_are_not():
    assert product({"subnormals"}, [2.0**-15], [1]) == 0
    assert product({"subnormals"}, [2.0**-14], [1]) == 2.0**-14
    assert float(op("mul", {"subnormals"}, x=half(2.0**-12), y=half(2.0**-12))) == 2.0**-24


# --- as a precision -------------------------------------------------------------------------------


def test_faults_are_named_and_wrong_names_are_refused(path):
    assert faults_of("fp16") == faults_of("fp32") == frozenset()
    assert faults_of("ane") == {*FAULTS} and faults_of("ane: silu,tanh") == {"silu", "tanh"}
    assert described("ane:silu") == "with the engine's silu"
    for wrong in ("bf16", "ane:", "ane:sliu", "fp16:silu", ""):
        with pytest.raises(InvalidInput, match="precision"):
            MLProgram(path, precision=wrong)


@pytest.mark.parametrize(
    "fault, value, changed",
    [
        ("accumulator", 600, "conv linear"),
        ("products", 2.0**-9, "square"),
        ("rounding", 2048, "more"),
        ("subnormals", 2.0**-24, "conv linear"),
        ("nonfinite", np.nan, "conv gelu linear mean more sigmoid silu softplus square tanh"),
        ("silu", 0.3, "silu"),
        ("gelu", 0.3, "gelu"),
        ("softplus", 12, "softplus"),
        ("sigmoid", 0.3, "sigmoid"),
        ("tanh", 0.3, "tanh"),
    ],
)
def test_each_fault_changes_what_it_says_and_nothing_else(path, fault, value, changed):
    plain, found = run(path, value, "fp16", f"ane:{fault}")
    apart = [n for n in sorted(plain) if not np.array_equal(plain[n], found[n], equal_nan=True)]
    expected = changed.split()
    if fault == "products":
        assert "square" in apart
        return
    assert apart == expected, apart
    if fault == "accumulator":
        assert find("sum-most").value == LOST  # said there with its sources, and here by itself
        assert np.isinf(found["conv"]).all() and np.isfinite(plain["conv"]).all()


def test_a_comparison_names_the_op(path):
    x = path.with_name("x.npz")
    np.savez(x, x=np.full((1, N, 1, 1), 600, np.float16))
    plain, engine = (compare_packages(path, inputs=x, precision=p)[0] for p in ("fp16", "ane"))
    assert plain.endswith("outputs apart: square")  # beyond half precision as well
    assert "outputs apart: conv, linear, square" in engine
    options = ["--run", "--precision", "ane:accumulator", "--inputs", str(x)]
    result = CliRunner().invoke(app, ["inspect", str(path), *options])
    assert result.exit_code == 0, result.output
    assert "with the engine's accumulator" in result.output


def test_all_that_have_faults_are_ops():
    assert OPS.keys() >= SUMS | ROUNDED | FORMS.keys() and FORMS.keys() <= FAULTS.keys()
