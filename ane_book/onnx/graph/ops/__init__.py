"""ONNX's operators in MIL: one small function each, written with coremltools' builder.

A function is registered under the operator's name. Its parameters are the operator's inputs in
their order, and its keywords the attributes, with ONNX's names and defaults; where an older
definition has an attribute for what is an input now, the one parameter takes both. A tensor comes
as a `Var` of the program or, where it is known, as an array in MIL's types (fp32, int32, bool); an
input that is annotated as `Constant` has to be known, because it shapes the program, and comes as
ONNX has it. What is left out is None. Results are of MIL's types; several come as a tuple. Core ML
has no empty tensors: where a part is one, it is an array, and known.

Files are grouped as ONNX groups its definitions (`onnx/defs`), which are also the reference:
https://onnx.ai/onnx/operators/
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
import inspect
import pkgutil
from typing import Annotated, TypeAlias

import numpy as np

__all__ = ["OPERATORS", "Constant", "Operator", "Unsayable", "operator"]

#: An input that has to be known when the graph is converted.
Constant: TypeAlias = Annotated[np.ndarray, "known"]

#: Definitions that are read: those of this opset and of older ones.
NEWEST = 28


class Unsayable(Exception):
    """What an operator is asked for has no form in MIL; the message says what."""


@dataclass(frozen=True)
class Operator:
    """One operator: its function, and the definitions (`since_version`) that the function has."""

    function: Callable
    since: int
    until: int
    parameters: tuple[inspect.Parameter, ...]  # of inputs

    @property
    def is_variadic(self) -> bool:
        return any(p.kind is p.VAR_POSITIONAL for p in self.parameters)

    @property
    def keywords(self) -> Mapping[str, inspect.Parameter]:
        """What may be given by name: attributes, and `outputs`, how many results are used."""
        return inspect.signature(self.function).parameters

    def takes(self, attribute: str) -> bool:
        """Whether the function has an attribute; one that hands them on says so itself."""
        hands_on = any(p.kind is p.VAR_KEYWORD for p in self.keywords.values())
        return hands_on or attribute in self.keywords


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, since: int = 1, until: int = NEWEST) -> Callable:
    """Register the decorated function under these names.

    since: the oldest definition that means what the function does. until: the newest that was read.
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
