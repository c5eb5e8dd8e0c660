"""Attention that runs as one kernel, as this project's converter writes it, and as others do."""

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


def groups(path, **options) -> list[str]:
    """The kinds of groups in a program."""
    steps = MLProgram(path, **options).plan.main.steps
    return [step.kernel for step in steps if len(step.operations) > 1]


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


def number(like, value):
    return (np.float16 if like.dtype == types.fp16 else np.float32)(value)


# --- attention ------------------------------------------------------------------------------------

DEPTH = 32


def attend(q, mask, *cache, see=False):
    """Over a cache in one part or two; see: give what softmax makes as well, so that it is made."""
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


def spelled_out(q, mask, k, v):
    """ANEMLL."""
    scores = mb.matmul(x=q, y=repeat(k), transpose_y=True)
    scores = mb.mul(x=scores, y=number(q, 0.125))
    return mb.matmul(x=softmax(mb.add(x=scores, y=mask)), y=repeat(v))


def by_columns(q, mask, k, v):
    """0seba: the heads that share a key head, one such group after the other."""
    columns, mask = mb.transpose(x=q, perm=[0, 1, 3, 2]), mb.transpose(x=mask, perm=[0, 1, 3, 2])
    parts = [mb.split(x=x, num_splits=k.shape[1], axis=1) for x in (columns, k, v)]
    found = []
    for q_, k_, v_ in zip(*parts, strict=True):
        scores = mb.mul(x=mb.matmul(x=k_, y=q_), y=number(q, 0.125))
        weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=2)
        found.append(mb.matmul(x=weights, y=v_, transpose_x=True))
    return mb.concat(values=found, axis=1)


def broadcast(q, mask, k, v):
    wide = mb.reshape(x=q, shape=[1, k.shape[1], 2, q.shape[2], DEPTH])
    k, v = (mb.expand_dims(x=x, axes=[2]) for x in (k, v))
    scores = mb.matmul(x=wide, y=k, transpose_y=True)
    scores = mb.real_div(x=scores, y=number(q, 8))
    y = mb.matmul(x=mb.softmax(x=mb.add(x=mask, y=scores), axis=-1), y=v)
    return mb.reshape(x=y, shape=q.shape)


def one_op(q, mask, k, v):
    """torch.export, and the recipe of Apple's."""
    return mb.scaled_dot_product_attention(
        query=q, key=interleave(k), value=interleave(v), attn_mask=mask
    )


#: What each form multiplies scores with.
SCALES = {attend: 1, spelled_out: 0.125, by_columns: 0.125, broadcast: 0.125, one_op: DEPTH**-0.5}
ROWS = [2, 20]


def attention(form, dtype: str, rows: int, slots: list[int], mask_rows: int) -> dict:
    """Inputs; where others than this project write them, two heads share one of the keys."""
    heads = 2 if form is attend else 4
    shapes = {"q": (1, heads, rows, DEPTH), "mask": (1, 1, mask_rows, sum(slots))}
    for i, n in enumerate(slots):
        shapes |= {f"k{i}": (1, 2, n, DEPTH), f"v{i}": (1, 2, n, DEPTH)}
    return {name: (shape, dtype) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def attending(tmp_path_factory):
    """`attending(form, dtype, rows, slots, mask_rows)` -> a package and its specs, made once."""
    made = {}

    def make(*case):
        if str(case) not in made:
            specs = attention(*case)
            path = build(specs, case[0], tmp_path_factory.mktemp("attention") / "a.mlpackage")
            made[str(case)] = path, specs
        return made[str(case)]

    return make


def masks(rows: int, slots: int) -> list[np.ndarray]:
    """(1, 1, rows, slots): nothing closed, causal, and whole stretches closed to all rows."""
    nothing, causal, holes = np.zeros((3, 1, 1, rows, slots))
    for i in range(rows):
        causal[..., i, max(1, slots - rows + i + 1) :] = CLOSED
    holes[..., 1 : slots // 2] = holes[..., 0, slots // 2 : slots - 1] = CLOSED
    return [nothing, causal, holes]


def exact_attention(inputs: dict, scale: float) -> np.ndarray:
    """In float64."""
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    keys, values = (np.concatenate([v for k, v in wide.items() if k[0] == c], 2) for c in "kv")
    shared = wide["q"].shape[1] // keys.shape[1]
    keys, values = (np.repeat(x, shared, axis=1) for x in (keys, values))
    scores = wide["q"] @ keys.swapaxes(-1, -2) * scale + wide["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


class TestAttention:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("form, rows, slots, mask_rows", [
        (attend, 1, [40], 1), (attend, 3, [17], 3), (attend, 3, [24, 1], 1),
        (attend, 2, [16, 2], 2), (attend, 64, [70], 64), (attend, 40, [64, 40], 40),
        *((form, rows, [50], rows) for form in SCALES if form is not attend for rows in ROWS),
    ])  # fmt: skip
    def test_is_that_of_its_ops(self, attending, form, dtype, rows, slots, mask_rows):
        path, specs = attending(form, dtype, rows, slots, mask_rows)
        assert groups(path) == ["attention"] * (2 if form is by_columns else 1)
        assert "attention" not in groups(path, without=["attention"])
        inputs, own = numbers(specs), form is attend
        inputs["q"] /= inputs["q"].dtype.type(32**0.5 if own else 1)
        for mask in masks(mask_rows, sum(slots)):
            inputs["mask"] = mask.astype(NUMBERS[dtype])
            fused, plain = both(path, dtype, inputs)
            assert_close(fused, plain, ulps=2 if dtype == "fp16" else 16, dtype=dtype)
            exactness = {"fp16": 4 if own else 6, "fp32": 32}[dtype]
            assert_close(fused, exact_attention(inputs, SCALES[form]), exactness, dtype)

    @pytest.mark.parametrize("rows", ROWS)
    def test_what_a_closed_slot_holds_shows_where_the_ops_show_it(self, attending, rows):
        """Nothing, if it is small; a score beyond the mask, an infinity and nan come through."""
        path, specs = attending(attend, "fp16", rows, [48, 2], rows)
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
    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("form", SCALES)
    def test_closed_slots_win_where_open_ones_score_less(self, attending, form, dtype, rows):
        """Of one row and one head alone; the closed ones hold nothing but take from the sum."""
        path, specs = attending(form, dtype, rows, [48, 2] if form is attend else [50], rows)
        inputs = {name: np.zeros(shape, NUMBERS[dtype]) for name, (shape, _) in specs.items()}
        inputs["mask"][..., 16:48] = -40000
        for part in [name for name in specs if name[0] == "k"]:
            keys, values = inputs[part], inputs[part.replace("k", "v")]
            for places in (slice(16), slice(48, 50)) if part == "k0" else (slice(2),):
                keys[..., places, 0], values[..., places, :] = -16 / SCALES[form], 1
        far = (-54000, -30048, -20000) if form is attend else ()
        for score in (-40032, -40000, -39968, *far):
            inputs["q"][:, -1, rows - 1, 0] = -score / 16
            fused, plain = both(path, dtype, inputs)
            np.testing.assert_allclose(fused, plain, rtol=2e-3)
            assert plain[0, 0, 0, 0] == pytest.approx(1, rel=1e-3)
            if form is attend:
                wins = {-54000: 0, -40000: 18 / 50}.get(score, float(score > -40000))
                assert plain[0, 1, -1, 0] == pytest.approx(wins, rel=1e-3, abs=1e-3)

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("form", SCALES)
    def test_a_row_that_is_closed_altogether(self, attending, form, dtype, rows):
        """To the least number the mean is left; to minus infinity NaN, or 0 of the one op. What
        fills its vector up has no share."""
        path, specs = attending(form, dtype, rows, [37] if form is attend else [50], rows)
        inputs = numbers(specs)
        inputs["q"] *= inputs["q"].dtype.type(0.01)  # a sum beyond the least would be -inf
        for closed in (np.finfo(NUMBERS[dtype]).min, -np.inf):
            inputs["mask"][...] = 0
            inputs["mask"][..., 1, :] = closed
            fused, plain = both(path, dtype, inputs)
            np.testing.assert_allclose(fused, plain, rtol=2e-3, atol=2e-3)
            if form is attend and dtype == "fp32" and np.isfinite(closed):
                mean = inputs["v0"].mean(axis=-2)
                np.testing.assert_allclose(fused[:, :, 1], mean, rtol=1e-5, atol=1e-5)
        assert np.isnan(plain[:, :, 1]).all() or (form is one_op and not plain[:, :, 1].any())
