"""ONNX's operators: one small function each, which builds it with coremltools' MIL builder.

A function is registered under the operator's name. Its positional parameters are the operator's
inputs, in order, and its keyword parameters the attributes, with ONNX's names and defaults. If an
older definition has an attribute for what is now an input, the one parameter takes both.

A tensor is passed as a `Var` of the program or, if it is constant, as an array in MIL's types
(fp32, int32, bool). An input that is annotated as `Constant` or `Bound` shapes the program, so it
has to be constant. Whole numbers, in attributes too, are within int32. An omitted input is None.
The results are in MIL's types, several of them as a tuple. Core ML has no empty tensors, so an
empty one is a constant array.

Files are grouped as ONNX groups its definitions (`onnx/defs`), which are also the reference:
https://onnx.ai/onnx/operators/
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
import inspect
import pkgutil
from typing import Annotated, TypeAlias

import numpy as np

__all__ = ["OPERATORS", "Bound", "Constant", "Operator", "Unsayable", "operator"]

#: Annotates an input that has to be constant when the graph is converted.
Constant: TypeAlias = Annotated[np.ndarray, "known"]

#: One that may be any number, as INT64_MAX is the end of every axis: it is cut to int32's range.
Bound: TypeAlias = Annotated[np.ndarray, "known and cut"]

#: The newest opset whose definitions are supported.
NEWEST = 28


class Unsayable(Exception):
    """A use of an operator has no form in MIL; the message says which.

    origins: the inputs of the graph that it would have a form for, were they constant.
    """

    def __init__(self, message: str, origins: Sequence[str] = ()):
        super().__init__(message)
        self.origins = [*origins]


@dataclass(frozen=True)
class Operator:
    """One operator: its function, and the range of definitions (`since_version`) it implements."""

    function: Callable
    since: int
    until: int
    parameters: tuple[inspect.Parameter, ...]  # of inputs

    @property
    def keywords(self) -> Mapping[str, inspect.Parameter]:
        """All parameters by name: inputs, attributes, and `outputs`, how many results are used."""
        return inspect.signature(self.function).parameters

    def takes(self, attribute: str) -> bool:
        """Whether the function takes an attribute; true of one that passes **attributes on."""
        hands_on = any(p.kind is p.VAR_KEYWORD for p in self.keywords.values())
        return hands_on or attribute in self.keywords


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, since: int = 1, until: int = NEWEST) -> Callable:
    """Register the decorated function under these names.

    since, until: the oldest and the newest definition that the function implements.
    """

    def register(function: Callable) -> Callable:
        parameters = inspect.signature(function).parameters.values()
        inputs = tuple(p for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD))
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"operator {name} is defined twice")
            OPERATORS[name] = Operator(function, since, until, inputs)
        return function

    return register


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
