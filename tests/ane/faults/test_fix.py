"""Exact rewrites: what was meant comes out, and the package given stays as it is."""

from _planted import at_kind, dtype_of, mb, number, program, saved
from mlprogram import MLProgram
from mlprogram.ane.faults.fix import fix
from mlprogram.package.reader import Package
import numpy as np
import pytest
import torch
from torch.nn import functional as F

X = np.array([[-3, -2, -1, 0], [0.5, 1, 2, 3]], np.float32)


def _kinds(path):
    function = Package(path).functions["main"]
    return [o.type for o in function.operations() if not o.is_constant]


def _atan2(x, y):
    """As coremltools 9.0 writes it."""
    zero, pi, one = (number(value, x) for value in (0, np.pi, 1))
    above, below = mb.greater(x=y, y=zero), mb.less(x=y, y=zero)
    left, upright = mb.less(x=x, y=zero), mb.equal(x=x, y=zero)

    def both(a, b):
        return mb.cast(x=mb.logical_and(x=a, y=b), dtype=dtype_of(x))

    tiny = number(1e-8 if dtype_of(x) == "fp32" else 6e-8, x)
    up, down = both(above, upright), both(below, upright)
    near = both(mb.greater(x=x, y=-tiny), mb.less(x=x, y=tiny))
    safe = mb.add(x=x, y=mb.mul(x=near, y=tiny))
    angle = mb.atan(x=mb.real_div(x=y, y=safe))
    angle = mb.add(x=angle, y=mb.mul(x=both(above, left), y=pi))
    angle = mb.sub(x=angle, y=mb.mul(x=both(below, left), y=pi))
    angle = mb.mul(x=angle, y=mb.sub(x=one, y=up))
    angle = mb.add(x=angle, y=mb.mul(x=up, y=pi / 2))
    angle = mb.mul(x=angle, y=mb.sub(x=one, y=down))
    return mb.add(x=angle, y=mb.mul(x=down, y=-pi / 2))


def _rms_norm(x):
    """As coremltools 9.0 writes it."""
    largest = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
    scaled = mb.square(x=mb.real_div(x=x, y=largest))
    power = mb.reduce_mean(x=scaled, axes=[-1], keep_dims=True)
    root = mb.sqrt(x=mb.add(x=power, y=number(1e-3, x)))
    return mb.real_div(x=x, y=mb.mul(x=root, y=largest))


def _band(x):
    return mb.sub(x=x, y=mb.band_part(x=x, lower=-1, upper=0))


def _masked(x, mask):
    closed = mb.sub(x=number(1, x), y=mask)
    return mb.softmax(x=mb.add(x=x, y=mb.mul(x=closed, y=number(-np.inf, x))), axis=-1)


def _clip(x):
    return mb.clip(x=x, alpha=number(-1, x), beta=number(np.inf, x))


def _attention(q, m):
    return mb.scaled_dot_product_attention(query=q, key=q, value=q, attn_mask=m)


PAIR, ROWS = {"x": (2, 4), "y": (2, 4)}, {"x": (2, 4)}
#: fault, the op it is found at, the program, its inputs, what torch gives, ops after
CASES = [
    ("pow-two", "pow", lambda y: mb.pow(x=number(2, y), y=y), {"y": (2, 4)}, lambda y: 2**y, 1),
    ("mod-sign", "mod", lambda x, y: mb.mod(x=x, y=y), PAIR, torch.remainder, 8),
    ("mod-sign", "mod", lambda x: mb.mod(x=x, y=number(3, x)), ROWS,
     lambda x: torch.remainder(x, 3), 4),
    ("reciprocal-epsilon", "inverse", lambda x: mb.inverse(x=x), ROWS, torch.reciprocal, 1),
    ("infinite-clip", "clip", _clip, ROWS, lambda x: x.clamp(min=-1), 1),
    ("softplus-large", "softplus", lambda x: mb.softplus(x=x), ROWS, F.softplus, 3),
    ("atan2-zero", "atan", _atan2, PAIR, lambda x, y: torch.atan2(y, x), 12),
    ("band-infinite", "sub", _band, {"x": (3, 4)}, lambda x: torch.triu(x, 1), 5),
    ("rms-norm-epsilon", "add", _rms_norm, ROWS, lambda x: F.rms_norm(x, (4,), eps=1e-3), 12),
    ("log-sum-exp", "reduce_log_sum_exp", lambda x: mb.reduce_log_sum_exp(x=x, axes=[-1]),
     ROWS, lambda x: torch.logsumexp(x, -1), 7),
    ("gather-negative", "gather", lambda x, i: mb.gather(x=x, indices=i, axis=1),
     {"x": (2, 4), "i": ((3,), "int32")}, lambda x, i: x[:, i], 4),
    ("attention-op", "scaled_dot_product_attention", _attention,
     {"q": (1, 2, 3, 4), "m": (3, 3)}, lambda q, m: F.scaled_dot_product_attention(q, q, q, m), 5),
    ("mask-infinite", "mul", _masked, {"x": (2, 4), "mask": (2, 4)},
     lambda x, m: torch.softmax(x + (1 - m) * torch.finfo(torch.float32).min, -1), 5),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_a_rewrite_gives_what_torch_does(case, dtype, tmp_path):
    fault, kind, build, inputs, meant, ops = case
    path = saved(program(build, dtype, **inputs), tmp_path / "a.mlpackage")
    report = fix(path, tmp_path / "b.mlpackage", at_kind(fault, kind))
    assert [one.fault.id for one in report.mended] == [fault], report.text()
    assert report.ops[1] == ops == len(_kinds(report.out))
    assert report.tried == 8 and report.error < (1e-6 if dtype == "fp32" else 1e-3)

    fixed = MLProgram(report.out)
    arrays = fixed.random_inputs(5)
    if fault == "mask-infinite":
        arrays["mask"] = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], arrays["mask"].dtype)
    (found,) = fixed.predict(arrays).values()
    tensors = [torch.from_numpy(a).float() if a.dtype.kind == "f" else torch.from_numpy(a)
               for a in arrays.values()]  # fmt: skip
    step = 1e-6 if dtype == "fp32" else 4e-3
    np.testing.assert_allclose(found, meant(*tensors).numpy(), step, step)
