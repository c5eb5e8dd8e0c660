"""What the fuzzer's packages are made with: PyMIL programs, seeded weights, coremltools."""

import warnings

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import coremltools.optimize.coreml as cto
import numpy as np

IOS16, IOS18 = ct.target.iOS16, ct.target.iOS18


def spec(*shape, dtype=types.fp32):
    return mb.TensorSpec(shape, dtype=dtype)


def weights(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32) / 4


def convert(program, target=IOS18, **options):
    """A PyMIL program as coremltools converts it; in fp16, as people have it."""
    with warnings.catch_warnings():  # it compares the ranges of dtypes in the smaller one
        warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
        return ct.convert(
            program, minimum_deployment_target=target, skip_model_load=True, **options
        )


def config(op):
    return cto.OptimizationConfig(global_config=op)
