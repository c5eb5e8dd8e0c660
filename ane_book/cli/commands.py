"""The commands of `ane-book`, each of which gets its options when it is called.

The list of commands needs their names and docstrings. Options are made from the records of
`ane_book.options`, and these need pydantic, which takes longer than all else that `--help` does.
"""

from collections.abc import Callable
import inspect
from typing import Any

from ane_book.cli.options import with_taken
import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Commands", "command"]

_FUNCTIONS: dict[str, Callable] = {}


def command(name: str) -> Callable[[Callable], Callable]:
    """Register a function as a command; its docstring is the command's help."""

    def register(function: Callable) -> Callable:
        _FUNCTIONS[name] = function
        return function

    return register


class Commands(TyperGroup):
    """All commands by name and help; the one that is called, with its options."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        for name, function in _FUNCTIONS.items():
            self.add_command(TyperCommand(name, help=inspect.getdoc(function)))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The name and the command that the arguments begin with, and the rest of them."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else _whole(name), rest


def _whole(name: str) -> Any:
    """A command with its options."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name)(with_taken(_FUNCTIONS[name]))
    return typer.main.get_command(alone)
