"""The ops of Core ML's ML Programs, each one small function on torch tensors.

An op is registered under its MIL name; its parameters carry the names that MIL gives the op's
inputs, with MIL's defaults. Files are grouped as coremltools groups its definitions
(`mil/ops/defs`), which are also the reference for the semantics:
https://apple.github.io/coremltools/source/coremltools.converters.mil.mil.ops.defs.html

Where the description of an op and what Core ML is reported to compute are two things, the other
reading stands beside the op, and `MLProgram(semantics=...)` chooses (`mlprogram.arithmetic`).

Two rules hold everywhere. A tensor leaves an op in the dtype that the program declares, so rounding
happens once per op; and whatever sums (products, reductions, norms, softmax) sums in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
import inspect
import pkgutil
from typing import Literal, get_args, get_origin

from mlprogram.package.validation.signatures import NEEDED

__all__ = ["OPS", "OTHERS", "Op", "Other", "op", "other"]


@dataclass(frozen=True)
class Op:
    """One op: the function, and the inputs it wants as Python values instead of tensors."""

    name: str
    function: Callable
    static: frozenset[str]
    parameters: frozenset[str]
    choices: dict[str, tuple[str, ...]]  # what an input that is a word may say, if not anything

    @property
    def wants_types(self) -> bool:
        """Whether the function asks for the declared output types (`_out`)."""
        return "_out" in self.parameters


@dataclass(frozen=True)
class Other:
    """Another reading of an op: as "documented" or as "reported", by a row of `arithmetic.toml`."""

    row: str
    reading: Literal["documented", "reported"]
    op: Op


OPS: dict[str, Op] = {}
OTHERS: dict[str, Other] = {}  # by the op's name


def op(name: str | None = None) -> Callable:
    """Register the decorated function as the op `name` (by default the function's own name).

    An input that is annotated as int, float, bool, str or a list of these is static: it arrives as
    a Python value because it shapes the computation, and one that is a Literal says one of these
    words, or the op is refused. Every other input arrives as a torch tensor.
    """

    def register(function: Callable) -> Callable:
        mil_name = name or function.__name__
        if mil_name in OPS:
            raise ValueError(f"op {mil_name} is defined twice")
        OPS[mil_name] = _op(mil_name, function)
        return function

    return register


def other(name: str, reading: Literal["documented", "reported"], row: str) -> Callable:
    """Register the decorated function as another reading of the op `name`, which is known by now.

    It is computed where a program touches the row and either its `semantics` is this reading or,
    for want of any, the row's default is. Its parameters are those of the op.
    """

    def register(function: Callable) -> Callable:
        if name in OTHERS:
            raise ValueError(f"op {name} has another reading already")
        OTHERS[name] = Other(row, reading, _op(name, function))
        return function

    return register


def _op(name: str, function: Callable) -> Op:
    parameters = inspect.signature(function).parameters
    needed = {k for k, p in parameters.items() if p.default is p.empty} - {"_out"}
    if needed != NEEDED.get(name):
        raise ValueError(f"op {name} needs {needed}, not as package/validation/signatures.py says")
    words = {k: p.annotation for k, p in parameters.items()}
    choices = {k: get_args(w) for k, w in words.items() if get_origin(w) is Literal}
    tensors = {k for k, w in words.items() if w is inspect.Parameter.empty or "Tensor" in str(w)}
    static = parameters.keys() - tensors - {"_out"}
    return Op(name, function, frozenset(static), frozenset(parameters), choices)


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
