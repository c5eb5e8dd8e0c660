"""What a command owes to whoever started it: streams, exit codes, one line for what went wrong.

Exit codes: what the command says; 2 for what the user can mend, with one line that says what; 130
for Ctrl-C and 141 where the reader of the output has left (`| head`), both without a word, as a
shell says of `cat`.

Everything else is imported inside, so that Ctrl-C is quiet from the first moment.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
import gc
import io
import json
from math import isfinite
import os
import signal
import sys
from typing import Any, NoReturn, TextIO
import warnings

#: New objects between two looks for garbage. Python's 700 looks a thousand times, at more and more
#: objects, while torch is imported and a program opened, which make hardly any.
YOUNG = 50_000


def run(command: Callable[[], int | str | None]) -> NoReturn:
    """Run a command and exit with its code; an `MLProgramError` becomes a line on stderr."""
    gc.set_threshold(YOUNG)
    _open_streams()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    stdout = sys.stdout
    try:
        code = _coded(command)
        stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        code = _failed(error)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to be tidied up
    try:
        stdout.flush()
    except OSError:  # Python would try once more, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    gc.freeze()  # or Python looks for garbage among all of torch's objects before it ends
    sys.exit(code)


def show(facts: Callable[[], object], text: Callable[[], str], as_json: bool) -> None:
    """Print facts, or the text that is made of them.

    JSON has only ASCII, so that no terminal obeys it; text has its control characters spelled out.
    """
    from mlprogram.errors import printable

    if as_json:
        print(json.dumps(plain(facts()), indent=2, allow_nan=False))
    else:
        print(printable(text()))


def typed_lines() -> Iterator[str]:
    """Yield non-blank lines from stdin; on a terminal with a prompt, where Ctrl-C clears a line."""
    interactive = sys.stdin.isatty()
    prompt = "> " if interactive and sys.stdout.isatty() else ""
    with suppress(ImportError):  # Windows' console edits lines by itself
        import readline  # noqa: F401  (`input` has arrow keys with it)
    while True:
        if interactive and not prompt:  # stdout is a file, which gets answers alone
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = input(prompt).strip()
        except EOFError:
            if interactive:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("^C", file=sys.stderr)  # as a shell marks such a line
            continue
        if line:
            yield line


def plain(value: Any) -> Any:
    """The same as JSON has it: without infinity and NaN, which become text."""
    if isinstance(value, dict):
        return {name: plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _coded(command: Callable[[], int | str | None]) -> int | str | None:
    from mlprogram.errors import MLProgramError

    try:
        return command()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # a parser has made it a 1
            raise end.__context__ from None
        return end.code
    except MLProgramError as error:
        return _refuse(str(error))


def _refuse(message: str) -> int:
    line = "; ".join(line.strip() for line in message.splitlines())
    print(f"error: {line.replace(':; ', ': ')}", file=sys.stderr)
    return 2


def _failed(error: OSError) -> int:
    """The exit code for a file, or an output, that the system refused."""
    if isinstance(error, BrokenPipeError):
        return 128 + 13  # SIGPIPE
    if error.filename is None:
        raise error  # nobody knows what of: a fault of ours
    from mlprogram.errors import printable

    return _refuse(printable(f"{os.fsdecode(error.filename)}: {error.strerror}"))


class _Output(io.FileIO):
    """Standard output, whose failures say whose they are."""

    def write(self, data) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


class _Heedless(io.FileIO):
    """Standard error, where nobody may listen: what is lost there is not worth an answer."""

    def write(self, data) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _open_streams() -> None:
    """Standard streams that are there, take any text, and fail as they should.

    A closed one is opened on nothing, or the next file that is opened would take its place.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(number, "rw"[number > 0], closefd=False))  # noqa: SIM115
    # What is no text is told as an argument's is; a console without an emoji still answers.
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if os.name == "posix":  # on Windows a console is no file
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
        sys.stderr = _text(_Heedless(2, "w", closefd=False), sys.stderr)


def _text(file: io.FileIO, former: TextIO) -> io.TextIOWrapper:
    lines = bool(former.line_buffering or getattr(former, "write_through", False))
    return io.TextIOWrapper(io.BufferedWriter(file), former.encoding, "replace", None, lines)
