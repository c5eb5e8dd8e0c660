"""precision="ane": activations as the Neural Engine computes them, by what is published of it.

This is experimental and a model: what the engine does otherwise in sums of products, in rounding
and elsewhere is computed as in half precision. It serves to find programs whose results depend on
such a form, on a machine without an engine. The forms are straight lines between 33 values, and a
softplus.

Of 751K/Apple-Neural-Engine-Microarchitecture-Study-M6@60d79c2 notes/numerics.md, M6, Core ML, read
from compiled programs: sigmoid has exact values from -8 to 8, every 0.5; tanh from 0 to 4, every
0.125, and is odd. gelu, the same for each mode, has values from -4 to 4, every 0.25, and silu from
-8 to 8, every 0.5. Those two are fitted: of each one is published, gelu(0.25) as 0.1436 and
silu(0.5) as 0.296, which is where the largest error of each was measured (0.0062 and 0.0149). The
other values are taken to be exact here, and the one across zero to be off by as much. What is
beyond the last value is 0, 1 or x.

Near zero this gives a silu that is 0.0016 off at x = 0.018; Anemll/anemll-forge@117ded6
ANE_DELTANET_NUMERICS.md measured 0.0011 in the mean there, M6. Its COREAI_PORT_NOTES.md has the
softplus: 0 from about 11 on, where e^x exceeds half precision (65,504 is e^11.09).
"""

from collections.abc import Callable
from math import log

from mlprogram.package.function import Operation
import torch
from torch import Tensor
from torch.nn import functional as F

SILU = (0.5, 0.296)  # x and the value published for it
GELU = (0.25, 0.1436)
OVERFLOW = log(torch.finfo(torch.float16).max)  # 11.09


def _values(function: Callable, first: float, last: float, known: tuple | None = None) -> Tensor:
    """33 values in half precision, as float32. known: one that is not the function's; the value at
    -x is then as far off, as that of x/2 plus an even function is."""
    x = torch.linspace(first, last, 33)
    y = function(x)
    if known is not None:
        place, value = known
        off = value - function(torch.tensor(place))
        y = torch.where(x.abs() == place, y + off, y)
    return y.half().float()


def _lines(x: Tensor, first: float, last: float, values: Tensor) -> Tensor:
    """Interpolate between values at equal distances from first to last; constant beyond."""
    place = (x.clamp(first, last) - first) * (32 / (last - first))
    left = place.floor().clamp(max=31)
    i = left.nan_to_num().long()
    return values[i] + (place - left) * (values[i + 1] - values[i])


_SIGMOID, _TANH = _values(torch.sigmoid, -8, 8), _values(torch.tanh, 0, 4)
_SILU_VALUES, _GELU_VALUES = _values(F.silu, -8, 8, SILU), _values(F.gelu, -4, 4, GELU)


def _sigmoid(x: Tensor) -> Tensor:
    y = _lines(x, -8, 8, _SIGMOID)
    return torch.where(x.abs() > 8, (x > 0).to(x.dtype), y)


def _tanh(x: Tensor) -> Tensor:
    y = torch.where(x.abs() > 4, 1, _lines(x.abs(), 0, 4, _TANH))
    return y.copysign(x)


def _silu(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 8, x.relu(), _lines(x, -8, 8, _SILU_VALUES))


def _gelu(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 4, x.relu(), _lines(x, -4, 4, _GELU_VALUES))


def _softplus(x: Tensor) -> Tensor:
    return torch.where(x > OVERFLOW, 0, F.softplus(x))


#: The op and its form, on float32.
FORMS = {"sigmoid": _sigmoid, "tanh": _tanh, "silu": _silu, "gelu": _gelu, "softplus": _softplus}


def as_engine(operation: Operation, function: Callable) -> Callable:
    """An op's function, or the engine's form of it where a result is in half precision."""
    form = FORMS.get(operation.type)
    if form is None or all(type_.dtype != "fp16" for _, type_ in operation.outputs):
        return function
    return lambda x, **_: form(x.float()).to(x.dtype)
