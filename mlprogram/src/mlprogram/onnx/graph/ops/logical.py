"""Comparisons and boolean operators."""

from . import operator
from ._common import Tensor, as_int, binary, is_bool, mb, unary


def _compare(name: str, mil_name: str, since: int) -> None:
    def convert(x: Tensor, y: Tensor) -> Tensor:
        if is_bool(x):
            x, y = as_int(x), as_int(y)
        return getattr(mb, mil_name)(x=x, y=y)

    operator(name, since=since)(convert)


_compare("Equal", "equal", 7)
_compare("Greater", "greater", 7)
_compare("GreaterOrEqual", "greater_equal", 12)
_compare("Less", "less", 7)
_compare("LessOrEqual", "less_equal", 12)

for _name in ("And", "Or", "Xor"):
    binary(_name, f"logical_{_name.lower()}")
unary("Not", "logical_not")
