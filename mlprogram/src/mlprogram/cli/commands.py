"""A command line of functions, and what it tells of an interrupt."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
import signal
import sys
from typing import Annotated, Any, ClassVar

from mlprogram.errors import InvalidInput, printable
import typer
from typer.core import TyperCommand, TyperGroup

COLUMN = 30  # the most columns of a name in --help: a longer one has a line of its own
PLAIN: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


def command_line(
    help_text: str,
    version: str,
    commands: Mapping[str, Mapping[str, Callable[..., Any]]],
    absent: Mapping[str, str] | None = None,
    gone: Mapping[str, str] | None = None,
) -> typer.Typer:
    """A command with subcommands: functions by name, whose docstrings are their help, under the
    headings that --help lists them by.

    absent: names of subcommands that are not here, and the one line that says why. gone: those that
    are here no longer, or such options ("run --old"), and what takes their place. version: what
    --version prints.
    """
    went = {words: f"{words} is gone: {instead}" for words, instead in (gone or {}).items()}

    class Commands(_Commands):
        headed: ClassVar = commands
        missing: ClassVar = {**(absent or {}), **went}

    app = typer.Typer(cls=Commands, help=help_text, no_args_is_help=True, **PLAIN)

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

    return app


class _Command(TyperCommand):
    """A command whose --help has its options under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list] = {}
        for each in self.get_params(ctx):
            plain = "Arguments" if each.param_type_name == "argument" else "Options"
            heading = getattr(each, "rich_help_panel", None) or plain
            if row := each.get_help_record(ctx):
                sections.setdefault(heading, []).append(row)
        _write(formatter, sections)


class _Made(Mapping[str, Any]):
    """Commands by name. Each is made when it is asked for, since its options may take a while."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]):
        self.functions = functions

    def __getitem__(self, name: str) -> Any:
        single = typer.Typer(add_completion=False, **PLAIN)
        single.command(name, cls=_Command)(self.functions[name])
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)


class _Commands(TyperGroup):
    """Commands under headings, and the names of those that are not here."""

    headed: ClassVar[Mapping[str, Mapping[str, Callable[..., Any]]]]
    missing: ClassVar[dict[str, str]]

    def __init__(self, **given: Any):
        functions = {name: each for group in self.headed.values() for name, each in group.items()}
        super().__init__(**given | {"commands": _Made(functions)})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = {
            heading: [(name, str(each.__doc__).partition("\n")[0]) for name, each in group.items()]
            for heading, group in self.headed.items()
        }
        _write(formatter, sections)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The name and the command that the arguments begin with, and the rest of them."""
        if args[0] in self.missing and not ctx.resilient_parsing:  # a shell completes words
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
            if isinstance(error, typer.BadParameter):  # pydantic's prefix, in a word of several
                error.message = error.message.removeprefix("Value error, ")
            option = f"{ctx.invoked_subcommand} {getattr(error, 'option_name', None)}"
            if option in self.missing:
                raise InvalidInput(self.missing[option]) from None
            raise


def _write(formatter: Any, sections: Mapping[str, list]) -> None:
    """Rows of names and texts under their headings, all in the same columns."""
    widest = max(len(name) for rows in sections.values() for name, _ in rows)
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl([(name.ljust(min(widest, COLUMN)), text) for name, text in rows])


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
