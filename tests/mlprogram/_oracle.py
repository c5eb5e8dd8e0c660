"""How the ops that compute are run, and what they are compared with.

Oracles: coremltools' own value inference where it has one (evaluated in float32; for half the
result is then rounded once, which is what an op promises), else numpy or torch.nn, written another
way than the op. All of it runs on any machine.
"""

import coremltools as ct
from coremltools.converters.mil.mil import Builder as mb
from hypothesis import HealthCheck, settings
from mlprogram.ops import OPS
import numpy as np
import torch

FLOATS = [np.float32, np.float16]

few = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def tensor(value):
    return torch.from_numpy(np.array(value)) if value is not None else None


def run(name, out=None, **inputs):
    """Call an op as the executor does, arrays as tensors, and return numpy; `out` is a dtype."""
    entry = OPS[name]
    for key, value in inputs.items():
        if key in entry.static:
            plain = isinstance(value, np.ndarray | np.generic)
            inputs[key] = value.tolist() if plain else value
        elif key != "_out":
            many = isinstance(value, list)
            inputs[key] = [tensor(v) for v in value] if many else tensor(value)
    if out is not None:
        inputs["_out"] = [(out, None)]
    results = entry.function(**inputs)
    many = isinstance(results, tuple)
    return tuple(r.numpy() for r in results) if many else results.numpy()


def theirs(name, **inputs):
    """The value that coremltools computes for the op."""
    found = []

    @mb.program(input_specs=[], opset_version=ct.target.iOS18)
    def program():
        with np.errstate(all="ignore"):
            found.append(getattr(mb, name)(**inputs))
        return found[0]

    results = found[0] if isinstance(found[0], list | tuple) else [found[0]]
    values = [r.val for r in results]
    if any(v is None for v in values):
        value = results[0].op.materialized_val_inference()
        values = list(value) if isinstance(value, tuple) else [value]
    return values if isinstance(found[0], list | tuple) else values[0]


def infer(name, **inputs):
    """The same; half is widened for the computation."""
    given = {k: v for k, v in inputs.items() if v is not None}
    half = {k: v for k, v in given.items() if getattr(v, "dtype", None) == np.float16}
    return theirs(name, **given | {k: v.astype(np.float32) for k, v in half.items()})


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


def suppress(boxes, scores, iou, limit, count, per_class):
    """Indices that survive, by comparing every pair of boxes in plain Python."""
    best, kind = scores.max(-1), scores.argmax(-1)
    edges = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in boxes.tolist()]
    kept = []
    for i in sorted(range(len(best)), key=lambda i: -best[i]):
        a = edges[i]
        for j in kept:
            b = edges[j]
            w, h = (max(0, min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1))
            areas = [(e[2] - e[0]) * (e[3] - e[1]) for e in (a, b)]
            if w * h > iou * (sum(areas) - w * h) and (not per_class or kind[i] == kind[j]):
                break
        else:
            if best[i] >= limit:
                kept.append(i)
    return (kept or [int(best.argmax())])[:count]
