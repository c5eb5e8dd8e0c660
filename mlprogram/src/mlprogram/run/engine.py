"""precision="ane": run a program with what is published about the Neural Engine's arithmetic.

This is experimental and a model: each fault does what a source has measured, on the chips that it
names. It serves to find programs whose results depend on one, on a machine without an engine.

- accumulator (M4, M6): a sum of products is kept in steps of 2^-16. Each product, and the bias, is
  rounded to a step, and a sum of 32,768 and more is infinite. A sum that passes 32,768 and comes
  back is infinite there, too; here it is not, since the order of the sum is not published.
- products (M4, M6): a product is dropped if the exponents of its factors add up to -17 or less; a
  subnormal number counts as -14.
- rounding (M4, M6): halves go away from zero, in sums of products and in add, mul and sub.
- subnormals (M6): a sum of products below 2^-14 becomes 0. The source says that such results are
  "flushed or of reduced precision", so this is the most that it can mean; another one read 2^-16.
- nonfinite (M6): infinity is read as 65,536, and NaN as a number above.
- silu, gelu, sigmoid, tanh, softplus (M6): `native_forms.py`.

751K/Apple-Neural-Engine-Microarchitecture-Study-M6@60d79c2 notes/numerics.md for all but two:
subnormals and softplus are Anemll/anemll-forge@117ded6's. How normalisations, softmax and
reductions sum, and what other ops do, is not published; they compute as in half precision.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlprogram.package.function import Operation
from mlprogram.run.native_forms import FORMS
from mlprogram.run.products_summed import SUMS, summed, to_half
import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = ["ROUNDED", "as_engine", "read_as_numbers"]

#: Ops that round halves away from zero, besides those that sum products.
ROUNDED = frozenset(["add", "mul", "sub"])


def as_engine(operation: Operation, function: Callable, faults: frozenset[str]) -> Callable:
    """Wrap an op's function with those of the faults that concern it."""
    kind = operation.type
    half = any(type_.dtype == "fp16" for _, type_ in operation.outputs)
    if half and kind in FORMS and kind in faults:
        form = FORMS[kind]
        function = lambda x, **_: form(x.float()).to(x.dtype)  # noqa: E731
    elif half and kind in SUMS:
        function = summed(kind, function, faults)
    elif half and kind in ROUNDED and "rounding" in faults:
        function = _rounded(function)
    return _reading_numbers(function, half) if "nonfinite" in faults else function


def _rounded(function: Callable) -> Callable:
    def run(**given: Any) -> Tensor:
        return to_half(function(**{key: _cast(v, torch.float64) for key, v in given.items()}), True)

    return run


def _reading_numbers(function: Callable, half: bool) -> Callable:
    def run(**given: Any) -> Any:
        if all(_finite(value) for value in given.values()):
            return function(**given)
        result = function(**{key: read_as_numbers(value) for key, value in given.items()})
        return _cast(result, torch.float16) if half else result

    return run


def _finite(value: object) -> bool:
    if isinstance(value, list):
        return all(_finite(one) for one in value)
    return not _is_half(value) or bool(torch.isfinite(value).all())


def read_as_numbers(value: Any) -> Any:
    """A half tensor in float32, its infinities 65,536 and its NaN between that and 131,072; lists
    of tensors likewise, and anything else as it is."""
    if isinstance(value, list):
        return [read_as_numbers(one) for one in value]
    if not _is_half(value):
        return value
    fraction = (value.view(torch.int16) & 0x3FF) / 1024
    number = torch.copysign((1 + fraction) * 65_536, value.float())
    return torch.where(value.isfinite(), value.float(), number)


def _is_half(value: object) -> "TypeIs[Tensor]":
    return isinstance(value, Tensor) and value.dtype == torch.float16


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors, in lists too, in a dtype; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_cast(one, dtype) for one in value]
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
