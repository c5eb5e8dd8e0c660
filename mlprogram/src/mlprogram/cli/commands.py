"""A command line of functions, and what it tells of an interrupt."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
import signal
import sys
from typing import Annotated, Any, ClassVar

from mlprogram.errors import InvalidInput, printable
import typer
from typer.core import TyperGroup


def command_line(
    help_text: str,
    version: str,
    commands: Mapping[str, Callable[..., Any]],
    absent: Mapping[str, str] | None = None,
) -> typer.Typer:
    """A command with subcommands: functions by name, whose docstrings are their help.

    absent: names of subcommands that are not here, or of such options ("run --old"), and the one
    line that says why. version: what --version prints.
    """

    class Commands(_Commands):
        missing: ClassVar = dict(absent or {})

    app = typer.Typer(
        cls=Commands,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def shown(wanted: bool) -> None:
        if wanted:
            print(version)
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=shown, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """What goes before every command."""

    for name, function in commands.items():
        app.command(name)(function)
    return app


class _Commands(TyperGroup):
    """Commands, and the names of those that are not here."""

    missing: ClassVar[dict[str, str]]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The name and the command that the arguments begin with, and the rest of them."""
        if args[0] in self.missing:
            raise InvalidInput(self.missing[args[0]])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it notes of an interrupt is told on stderr."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, SystemExit) as end:
            with suppress(OSError):  # the terminal may be what went away
                for note in getattr(end, "__notes__", ()):
                    print(printable(note), file=sys.stderr)
            raise
        except Exception as error:  # typer gives NoSuchOption no public name
            option = f"{ctx.invoked_subcommand} {getattr(error, 'option_name', None)}"
            if option in self.missing:
                raise InvalidInput(self.missing[option]) from None
            raise


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
