"""Unary ops: one tensor in, one tensor of the same shape and dtype out.

torch evaluates these in float32 for half inputs and rounds once, so most are one call. The
exceptions (`erf` and `sin`, whose half kernels are less exact, and everything that adds an epsilon
first) widen explicitly.

Reference: coremltools `defs/iOS15/elementwise_unary.py`, `defs/iOS17/elementwise_unary.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from . import op, other


def one_call(function: Callable) -> Callable:
    return lambda x: function(x)


# those that are one call of torch's, most of them on integers too
for _name, _function in {
    "abs": torch.abs, "acos": torch.acos, "asin": torch.asin, "atan": torch.atan,
    "atanh": torch.atanh, "ceil": torch.ceil, "cos": torch.cos, "cosh": torch.cosh,
    "exp": torch.exp, "floor": torch.floor, "logical_not": torch.logical_not, "sign": torch.sign,
    "sinh": torch.sinh, "sqrt": torch.sqrt, "square": torch.square, "tan": torch.tan,
    "tanh": torch.tanh,
}.items():  # fmt: skip
    op(_name)(one_call(_function))

# MIL's names of the dtypes a tensor may have
DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "int64": torch.int64,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


@op()
def cast(x: Tensor, dtype: str) -> Tensor:
    """x in the dtype that MIL calls `dtype`; floats are cut towards zero, nonzero is true."""
    return x.to(DTYPES[dtype])


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x cut towards zero: the least or the greatest number of a dtype for what lies outside, 0 for
    NaN, as ARM's processors convert. What others do is theirs."""
    limits = torch.iinfo(dtype)
    wide = x.double().nan_to_num(0, limits.max, limits.min)
    return wide.clamp(limits.min, limits.max).to(dtype)


@other("cast", "reported", "cast-outside")
def cast_saturated(x: Tensor, dtype: str) -> Tensor:
    """x in the dtype that MIL calls `dtype`; from floats to whole numbers as `saturated`."""
    wanted = DTYPES[dtype]
    is_cut = x.is_floating_point() and not wanted.is_floating_point and wanted != torch.bool
    return saturated(x, wanted) if is_cut else x.to(wanted)


@op()
def clip(x: Tensor, alpha: float, beta: float) -> Tensor:
    """min(max(x, alpha), beta)."""
    return torch.clamp(x, alpha, beta)


@op()
def erf(x: Tensor) -> Tensor:
    """Gauss error function."""
    # torch's half kernel flushes subnormal results to zero
    return x.float().erf().to(x.dtype)


@op()
def exp2(x: Tensor) -> Tensor:
    """2^x; an integer x gives an integer (fractions are cut)."""
    return x.exp2().to(x.dtype)


@op()
def inverse(x: Tensor, epsilon: float = 1e-4) -> Tensor:
    """1 / (x + epsilon)."""
    return (x.float() + epsilon).reciprocal().to(x.dtype)


@op()
def log(x: Tensor, epsilon: float = 1e-45) -> Tensor:
    """Natural logarithm of x + epsilon."""
    return (x.float() + epsilon).log().to(x.dtype)


@op("round")
def round_(x: Tensor) -> Tensor:
    """The nearest integer; halves go to the even one."""
    return x.round()


@op()
def rsqrt(x: Tensor, epsilon: float = 1e-12) -> Tensor:
    """1 / sqrt(x + epsilon)."""
    return (x.float() + epsilon).rsqrt().to(x.dtype)


@op()
def sin(x: Tensor) -> Tensor:
    """Sine of x in radians."""
    # torch's half kernel is an ulp off for some x
    return x.float().sin().to(x.dtype)


@op()
def threshold(x: Tensor, alpha: float) -> Tensor:
    """max(x, alpha); integers too."""
    return torch.clamp_min(x, alpha)
