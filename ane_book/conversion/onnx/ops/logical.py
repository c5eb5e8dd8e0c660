"""Comparisons and truth."""

from . import operator
from ._common import Tensor, as_int, is_bool, mb


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


def _join(name: str, mil_name: str) -> None:
    def convert(x: Tensor, y: Tensor) -> Tensor:
        return getattr(mb, mil_name)(x=x, y=y)

    operator(name, since=7)(convert)


_join("And", "logical_and")
_join("Or", "logical_or")
_join("Xor", "logical_xor")


@operator("Not")
def logical_not(x: Tensor) -> Tensor:
    return mb.logical_not(x=x)
