"""The commands of `ane-book`, each of which gets its options when it is called.

The list of commands needs their names and docstrings. Options are made from the records of
`ane_book.options`, and these need pydantic, which takes longer than all else that `--help` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import inspect
import signal
import sys
from typing import Any

from ane_book.cli.options import with_taken
from ane_book.errors import printable
import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Commands", "command", "told_to_end"]

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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it notes of an interrupt is told on stderr."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, SystemExit) as end:
            with suppress(OSError):  # the terminal may be what went away
                for note in getattr(end, "__notes__", ()):
                    print(printable(note), file=sys.stderr)
            raise


def _whole(name: str) -> Any:
    """A command with its options."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name)(with_taken(_FUNCTIONS[name]))
    return typer.main.get_command(alone)


@contextmanager
def told_to_end() -> Iterator[None]:
    """Turn termination signals, which would end the process at once, into SystemExit."""

    def end(number: int, _) -> None:
        sys.exit(128 + number)

    known = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]  # no SIGHUP on Windows
    numbers = [n for n in known if n and signal.getsignal(n) == signal.SIG_DFL]  # nohup ignores it
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
