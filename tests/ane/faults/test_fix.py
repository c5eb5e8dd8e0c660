"""Exact rewrites: what was meant comes out, and the package given stays as it is."""

from _planted import alone, dtype_of, mb, number, program, saved, types
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


def _opened_by(q, m):
    return mb.scaled_dot_product_attention(
        query=q, key=q, value=q, attn_mask=mb.cast(x=m, dtype="bool")
    )


def _added(constant):
    """Attention as coremltools 8.0 writes it: its mask is added as 0 and 1."""

    def build(q, m):
        scores = mb.matmul(x=q, y=q, transpose_y=True)
        opened = mb.greater(x=m, y=number(0, m))
        mask = np.tri(3, dtype=types.nptype_from_builtin(q.dtype))
        mask = mask if constant else mb.cast(x=opened, dtype=dtype_of(q))
        shares = mb.softmax(x=mb.add(x=scores, y=mask), axis=-1)
        return mb.add(x=mb.matmul(x=shares, y=q), y=number(0, q))

    return build


def _masked_attention(mask):
    def meant(q, m):
        closed = torch.where(mask(m), q @ q.mT, torch.finfo(torch.float32).min)
        return torch.softmax(closed, -1) @ q

    return meant


def _corner(x):
    return mb.conv(
        x=x, weight=_weight(x, 3, 2, 3, 2), strides=[2, 2], pad_type="custom", pad=[1] * 4
    )


def _weight(x, *shape):
    weight = np.random.default_rng(0).standard_normal(shape)
    return weight.astype(types.nptype_from_builtin(x.dtype)).round(1)


def _uneven(x):
    weight = _weight(x, 2, 3, 3, 3)
    return mb.conv_transpose(
        x=x, weight=weight, strides=[2, 2], pad_type="custom", pad=[1, 0, 0, 1]
    )


def _transposed(x):
    return F.conv_transpose2d(x, _torch_weight(2, 3, 3, 3), stride=2)[:, :, 1:, :-1]


def _torch_weight(*shape):
    return (
        torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).float().round(decimals=1)
    )


def _average(x):
    return mb.avg_pool(x=x, kernel_sizes=[7, 7], strides=[4, 4], pad_type="custom", pad=[3] * 4)


def _pool(x):
    return mb.max_pool(
        x=x, kernel_sizes=[2, 2], strides=[3, 3], pad_type="custom", pad=[1] * 4, ceil_mode=True
    )


def _lower(x):
    return mb.avg_pool(x=x, kernel_sizes=[2], strides=[1], pad_type="same_lower")


def _backwards(x):
    return mb.slice_by_index(x=x, begin=[0, -1], end=[2, -2], stride=[1, -1])


def _volume(x):
    return mb.instance_norm(x=x, gamma=_weight(x, 2), beta=_weight(x, 2), epsilon=number(1e-3, x))


def _normed(x):
    return F.instance_norm(x, weight=_torch_weight(2), bias=_torch_weight(2), eps=1e-3)


INDEX = ((3,), "int32")
PAIR, ROWS, IMAGE = {"x": (2, 4), "y": (2, 4)}, {"x": (2, 4)}, {"x": (1, 2, 9, 9)}
HEADS = {"q": (1, 2, 3, 4), "m": (3, 3)}
#: fault, the program, its inputs, what torch gives, ops after
CASES = [
    ("pow-two", lambda y: mb.pow(x=number(2, y), y=y), {"y": (2, 4)}, lambda y: 2**y, 1),
    ("mod-sign", lambda x, y: mb.mod(x=x, y=y), PAIR, torch.remainder, 12),
    ("mod-sign", lambda x: mb.mod(x=x, y=number(3, x)), ROWS,
     lambda x: torch.remainder(x, 3), 7),
    ("reciprocal-epsilon", lambda x: mb.inverse(x=x), ROWS, torch.reciprocal, 1),
    ("non-finite", _clip, ROWS, lambda x: x.clamp(min=-1), 1),
    ("atan2-zero", _atan2, PAIR, lambda x, y: torch.atan2(y, x), 19),
    ("band-infinite", _band, {"x": (3, 4)}, lambda x: torch.triu(x, 1), 5),
    ("rms-norm-epsilon", _rms_norm, ROWS, lambda x: F.rms_norm(x, (4,), eps=1e-3), 12),
    ("log-sum-exp", lambda x: mb.reduce_log_sum_exp(x=x, axes=[-1]),
     ROWS, lambda x: torch.logsumexp(x, -1), 7),
    ("attention-mask-ignored", _attention, HEADS,
     lambda q, m: F.scaled_dot_product_attention(q, q, q, m), 5),
    ("attention-mask-ignored", _opened_by, HEADS,
     lambda q, m: F.scaled_dot_product_attention(q, q, q, m != 0), 9),
    ("non-finite", _masked, {"x": (2, 4), "mask": (2, 4)},
     lambda x, m: torch.softmax(x + (1 - m) * torch.finfo(torch.float32).min, -1), 5),
    ("attention-mask-added", _added(True), HEADS,
     _masked_attention(lambda m: torch.ones(3, 3).tril() > 0), 7),
    ("attention-mask-added", _added(False), HEADS, _masked_attention(lambda m: m > 0), 10),
    ("gather-negative", lambda x: mb.gather(x=x, indices=[[0, -1], [-4, 1]], axis=1),
     ROWS, lambda x: x[:, [[0, -1], [-4, 1]]], 1),
    ("gather-negative", lambda x: mb.gather_nd(x=x, indices=[[0, -1], [-2, 1]]),
     ROWS, lambda x: x[[0, -2], [-1, 1]], 1),
    ("slice-last-backwards", _backwards, ROWS, lambda x: x[:, -1:], 1),
    ("matmul-vector", lambda x, y: mb.matmul(x=x, y=y), {"x": (4,), "y": (4, 3)},
     torch.matmul, 3),
    ("conv-corner", _corner, {"x": (1, 2, 5, 5)},
     lambda x: F.conv2d(x, _torch_weight(3, 2, 3, 2), stride=2, padding=1), 2),
    ("avg-pool-seven", _average, IMAGE, lambda x: F.avg_pool2d(x, 7, 4, 3), 2),
    ("pool-same-lower", _lower, {"x": (1, 1, 2)},
     lambda x: F.avg_pool1d(F.pad(x, (1, 0)), 2, 1), 1),
    ("max-pool-padding", _pool, {"x": (1, 2, 4, 4)},
     lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True), 1),
    ("conv-transpose-uneven", _uneven, {"x": (1, 2, 3, 3)}, _transposed, 2),
    ("instance-norm-volume", _volume, {"x": (1, 2, 2, 3, 4)}, _normed, 3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_a_rewrite_gives_what_torch_does(case, dtype, tmp_path):
    fault, build, inputs, meant, ops = case
    path = saved(program(build, dtype, **inputs), tmp_path / "a.mlpackage")
    report = fix(path, tmp_path / "b.mlpackage", alone(fault))
    assert [one.fault.id for one in report.mended] == [fault], report.text()
    assert report.ops[1] == ops == len(_kinds(report.out))
    assert report.tried == 8 and report.error < (1e-6 if dtype == "fp32" else 1e-3)

    fixed = MLProgram(report.out)
    arrays = fixed.random_inputs(5)
    if "mask" in arrays:
        arrays["mask"] = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], arrays["mask"].dtype)
    (found,) = fixed.predict(arrays).values()
    tensors = [torch.from_numpy(a).float() if a.dtype.kind == "f" else torch.from_numpy(a)
               for a in arrays.values()]  # fmt: skip
    step = 1e-6 if dtype == "fp32" else 4e-3
    np.testing.assert_allclose(found, meant(*tensors).numpy(), step, step)
