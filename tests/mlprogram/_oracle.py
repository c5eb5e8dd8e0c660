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
