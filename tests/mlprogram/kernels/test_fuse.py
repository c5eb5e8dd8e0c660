"""Groups of ops that run as one kernel: found where they are, only there, with equal results."""

import subprocess
import sys

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not native.available(), reason=native.status()[1])

TYPES = {"fp16": types.fp16, "fp32": types.fp32}
NUMBERS = {"fp16": np.float16, "fp32": np.float32}
CLOSED = -32000.0  # what a mask adds to a slot that takes no part


def groups(path) -> list[str]:
    """The kinds of groups in a program."""
    return [step.kernel for step in MLProgram(path).plan.main.steps if len(step.operations) > 1]


def both(path, precision: str, inputs: dict) -> list[np.ndarray]:
    """The result as fused, and with every op by itself."""
    programs = [MLProgram(path, precision=precision, optimize=o) for o in (True, False)]
    return [next(iter(program.predict(inputs).values())) for program in programs]


def assert_close(found: np.ndarray, expected: np.ndarray, ulps: float, dtype: str) -> None:
    """Within so many units in the last place of the largest value of a row."""
    largest = np.abs(expected).max(axis=-1, keepdims=True).astype(NUMBERS[dtype])
    unit = np.spacing(largest).astype(np.float64)
    assert np.isfinite(expected).all()
    assert (np.abs(found.astype(np.float64) - expected) / unit).max() <= ulps


def build(specs: dict, body, path):
    """A program of named inputs {name: (shape, dtype)}, saved."""
    arguments = ", ".join(specs)  # Core ML takes the names of the function's parameters
    function = eval(f"lambda {arguments}: body({arguments})", {"body": body})
    specs = [mb.TensorSpec(shape, dtype=TYPES[dtype]) for shape, dtype in specs.values()]
    program = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(function)
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(program, compute_precision=ct.precision.FLOAT32, **options).save(str(path))
    return path


def numbers(specs: dict, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape).astype(NUMBERS[dtype])
        for name, (shape, dtype) in specs.items()
    }


def attention(dtype: str, rows: int, slots: list[int], mask_rows: int, heads=2, depth=32) -> dict:
    """Inputs of attention with a cache in one part or two."""
    shapes = {"q": (1, heads, rows, depth), "mask": (1, 1, mask_rows, sum(slots))}
    for i, n in enumerate(slots):
        shapes |= {f"k{i}": (1, heads, n, depth), f"v{i}": (1, heads, n, depth)}
    return {name: (shape, dtype) for name, shape in shapes.items()}


def attend(q, mask, *cache, see=False):
    """The ops of attention; see: give what softmax makes as well, so that it has to be made."""
    keys, values = cache[0::2], cache[1::2]
    scores = [mb.matmul(x=q, y=k, transpose_y=True) for k in keys]
    scores = mb.concat(values=scores, axis=-1) if len(scores) > 1 else scores[0]
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=-1)
    parts = [weights]
    if len(values) > 1:
        parts = mb.split(x=weights, split_sizes=[v.shape[-2] for v in values], axis=-1)
    outputs = [mb.matmul(x=w, y=v) for w, v in zip(parts, values, strict=True)]
    output = mb.add(x=outputs[0], y=outputs[1]) if len(outputs) > 1 else outputs[0]
    return (output, weights) if see else output


def masks(rows: int, slots: int) -> list[np.ndarray]:
    """(1, 1, rows, slots): nothing closed, causal, and whole stretches closed to all rows."""
    nothing, causal, holes = np.zeros((3, 1, 1, rows, slots))
    for i in range(rows):
        causal[..., i, max(1, slots - rows + i + 1) :] = CLOSED
    holes[..., 1 : slots // 2] = holes[..., 0, slots // 2 : slots - 1] = CLOSED
    return [nothing, causal, holes]


def exact_attention(inputs: dict, parts: int) -> np.ndarray:
    """In float64."""
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    keys, values = (np.concatenate([wide[f"{c}{i}"] for i in range(parts)], 2) for c in "kv")
    scores = wide["q"] @ keys.swapaxes(-1, -2) + wide["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


class TestAttention:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("rows, slots, mask_rows", [
        (1, [40], 1), (3, [17], 3), (3, [24, 1], 1), (2, [16, 2], 2), (64, [70], 64),
        (40, [64, 40], 40),
    ])  # fmt: skip
    def test_is_that_of_its_ops(self, tmp_path, dtype, rows, slots, mask_rows):
        specs = attention(dtype, rows, slots, mask_rows)
        path = build(specs, attend, tmp_path / "a.mlpackage")
        assert groups(path) == ["attention"]
        inputs = numbers(specs)
        inputs["q"] /= inputs["q"].dtype.type(32**0.5)
        for mask in masks(mask_rows, sum(slots)):
            inputs["mask"] = mask.astype(inputs["q"].dtype)
            fused, plain = both(path, dtype, inputs)
            assert_close(fused, plain, ulps=2 if dtype == "fp16" else 16, dtype=dtype)
            assert_close(fused, exact_attention(inputs, len(slots)), 4 if dtype == "fp16" else 32,
                         dtype=dtype)  # fmt: skip

    @pytest.mark.parametrize("rows", [2, 20])
    def test_what_a_closed_slot_holds_shows_where_the_ops_show_it(self, tmp_path, rows):
        """Nothing, if it is small; a score beyond the mask, an infinity and nan come through."""
        specs = attention("fp16", rows, [48, 2], rows)
        path = build(specs, attend, tmp_path / "a.mlpackage")
        inputs = numbers(specs)
        inputs["mask"][...] = 0
        inputs["mask"][..., 16:48] = CLOSED
        seen = []
        for key, value in ((0, 0), (5, 5), (-60000, 5), (0, np.inf), (0, np.nan), (np.nan, 0)):
            inputs["k0"][..., 16:, :], inputs["v0"][..., 16:, :] = 0, 0
            inputs["k0"][:, 1, 30], inputs["v0"][:, 1, 30] = key, value
            fused, plain = both(path, "fp16", inputs)
            np.testing.assert_array_equal(np.isfinite(fused), np.isfinite(plain))
            finite = np.isfinite(plain)
            np.testing.assert_allclose(fused[finite], plain[finite], rtol=2e-3, atol=2e-3)
            seen.append(bool(finite.all()))
        assert seen == [True, True, False, False, False, False]

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("rows", [2, 20])
    def test_closed_slots_win_where_open_ones_score_less(self, tmp_path, dtype, rows):
        """Of one row and one head alone; the closed ones hold nothing but take from the sum."""
        specs = attention(dtype, rows, [48, 2], rows)
        path = build(specs, attend, tmp_path / "a.mlpackage")
        inputs = {name: np.zeros(shape, NUMBERS[dtype]) for name, (shape, _) in specs.items()}
        inputs["mask"][..., 16:48] = -40000
        for part, size in ((0, 16), (1, 2)):
            inputs[f"k{part}"][..., :size, 0], inputs[f"v{part}"][..., :size, :] = -16, 1
        for score in (-54000, -40032, -40000, -39968, -30048, -20000):
            inputs["q"][:, 1, rows - 1, 0] = -score / 16
            fused, plain = both(path, dtype, inputs)
            np.testing.assert_allclose(fused, plain, rtol=2e-3)
            wins = {-54000: 0, -40000: 18 / 50}.get(score, float(score > -40000))
            assert plain[0, 1, -1, 0] == pytest.approx(wins, rel=1e-3, abs=1e-3)
            assert plain[0, 0, 0, 0] == pytest.approx(1, rel=1e-3)

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("rows, slots", [(2, 28), (20, 37)])
    def test_a_row_whose_mask_is_the_least_number_takes_the_mean(
        self, tmp_path, dtype, rows, slots
    ):
        """As of a row that stands for nothing; what fills its vector up has no share."""
        specs = attention(dtype, rows, [slots], rows)
        path = build(specs, attend, tmp_path / "a.mlpackage")
        inputs = numbers(specs)
        inputs["mask"][...] = 0
        inputs["mask"][..., 1, :] = np.finfo(NUMBERS[dtype]).min
        inputs["q"] *= inputs["q"].dtype.type(0.01)  # a sum beyond the least would be -inf
        fused, plain = both(path, dtype, inputs)
        np.testing.assert_allclose(fused, plain, rtol=2e-3, atol=2e-3)
        if dtype == "fp32":
            np.testing.assert_allclose(
                fused[:, :, 1], inputs["v0"].mean(axis=-2), rtol=1e-5, atol=1e-5
            )

    def test_weights_that_someone_else_reads_are_made(self, tmp_path):
        specs = attention("fp32", 2, [16], 2)
        path = build(specs, lambda *inputs: attend(*inputs, see=True), tmp_path / "a.mlpackage")
        assert groups(path) == []

    def test_softmax_over_another_axis_is_another_op(self, tmp_path):
        def body(q, mask, k0, v0):
            scores = mb.add(x=mb.matmul(x=q, y=k0, transpose_y=True), y=mask)
            return mb.matmul(x=mb.softmax(x=scores, axis=-2), y=v0)

        specs = attention("fp32", 16, [16], 16)
        assert groups(build(specs, body, tmp_path / "a.mlpackage")) == []


class TestRmsNorm:
    @staticmethod
    def body(axis: int, weight: np.ndarray | None, sign=-1.0):
        def body(x):
            half = np.float16 if x.dtype == types.fp16 else np.float32
            pair = mb.concat(values=[x, mb.mul(x=x, y=half(sign))], axis=axis)
            normal = mb.layer_norm(x=pair, axes=[axis], epsilon=half(1e-5))
            y = mb.slice_by_index(x=normal, begin=[0] * x.rank, end=list(x.shape))
            return y if weight is None else mb.mul(x=y, y=weight.astype(half))

        return body

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("weighted, shape, axis", [
        (True, (1, 48, 1, 1), 1), (False, (1, 48, 1, 21), 1), (False, (2, 5, 40), 2),
        (True, (2, 5, 40), 2), (True, (1, 80, 1, 300), 1),
    ])  # fmt: skip
    def test_is_that_of_its_ops(self, tmp_path, dtype, weighted, shape, axis):
        weight = None
        if weighted:
            aligned = [n if i == axis else 1 for i, n in enumerate(shape)]
            weight = np.random.default_rng(1).standard_normal(aligned)
        specs = {"x": (shape, dtype)}
        path = build(specs, self.body(axis, weight), tmp_path / "n.mlpackage")
        assert groups(path) == ["rms_norm"]
        inputs = numbers(specs)
        fused, plain = both(path, dtype, inputs)
        x = inputs["x"].astype(np.float64)
        exact = x / np.sqrt((x**2).mean(axis, keepdims=True) + 1e-5)
        exact = exact if weight is None else exact * weight.astype(NUMBERS[dtype])
        for expected in (plain, exact):
            assert_close(fused, expected, 2 if dtype == "fp16" else 8, dtype)

    def test_of_another_pair_is_a_layer_norm(self, tmp_path):
        path = build(
            {"x": ((1, 48, 1, 4), "fp32")}, self.body(1, None, sign=-2.0), tmp_path / "n.mlpackage"
        )
        assert groups(path) == []


class TestGate:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("shape", [(1, 7), (1, 96, 1, 1), (1, 200, 1, 64)])
    def test_is_that_of_its_ops(self, tmp_path, dtype, shape):
        specs = {"gate": (shape, dtype), "x": (shape, dtype)}
        path = build(
            specs, lambda gate, x: mb.mul(x=x, y=mb.silu(x=gate)), tmp_path / "g.mlpackage"
        )
        assert groups(path) == ["gated"]
        inputs = numbers(specs)
        inputs["gate"] *= 8
        inputs["gate"].flat[:4] = [-100, 100, 0, -11]
        fused, plain = both(path, dtype, inputs)
        assert_close(fused, plain, 1 if dtype == "fp16" else 4, dtype)

    def test_with_a_factor_of_another_shape_is_two_ops(self, tmp_path):
        specs = {"gate": ((4, 8), "fp32"), "x": ((1, 8), "fp32")}
        path = build(
            specs, lambda gate, x: mb.mul(x=x, y=mb.silu(x=gate)), tmp_path / "g.mlpackage"
        )
        assert groups(path) == []

    def test_times_itself_is_two_ops(self, tmp_path):
        """As a gate of itself it would read the silu that the group does not make."""

        def square(gate):
            opened = mb.silu(x=gate)
            return mb.mul(x=opened, y=opened)

        path = build({"gate": ((4, 8), "fp32")}, square, tmp_path / "g.mlpackage")
        assert groups(path) == []


def test_long_attention_runs_in_a_thread_with_a_small_stack():
    """Rows of the mask are as long as the cache: none of them may lie on the stack."""
    code = """
import threading, torch
from mlprogram.kernels.native import ops as native_ops
slots = 65536
attend = native_ops.attention((1, 2, 8), (slots,), 1, torch.float16)
q, mask = torch.randn(1, 2, 8).half(), torch.zeros(1, slots).half()
cache = torch.randn(2, 1, slots, 8).half()
def work():
    out = attend(q, mask, *cache)
    print(out.isfinite().all().item())
threading.stack_size(192 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip()) == (0, "True"), found.stderr
