"""A conversation at the terminal: what is typed, what is answered, and what may be shown.

Answers go to stdout, everything else to stderr, so that answers can be piped.
"""

from collections.abc import Iterator
from contextlib import suppress
import sys
from typing import TYPE_CHECKING

from ane_book.errors import InvalidInput, PromptTooLong, printable

if TYPE_CHECKING:
    from ane_book.runtime import Result, Session

__all__ = ["answer", "converse"]


def answer(session: "Session", prompt: str, options: dict) -> None:
    """Print the answer to one prompt, then how it came about; options are those of `stream`."""
    stream = session.stream(prompt, **options)
    for piece in stream:
        print(shown(piece), end="", flush=True)
    print(flush=True)
    print(statistics(stream.result), file=sys.stderr)


def converse(session: "Session", options: dict) -> None:
    """Answer line by line until /quit or the end of input; /reset begins anew."""
    model = session.bundle.manifest
    if model.tokenizer.chat_template is None:
        raise InvalidInput(f"{model.name} has no chat template; ask it by `ane-book run`")
    if sys.stdin.isatty():
        tokens = f"{model.name}, {session.context} tokens"
        print(f"{tokens}. /reset begins anew, /quit ends, Ctrl-C stops an answer.", file=sys.stderr)
    messages = []
    for line in typed_lines():
        if line == "/quit":
            break
        if line == "/reset":
            messages = []
        else:
            messages += _turn(session, messages, line, options)


def _turn(session: "Session", messages: list[dict], line: str, options: dict) -> list[dict]:
    """Ask, print, and return question and answer; Ctrl-C ends the answer, not the program."""
    question = {"role": "user", "content": line}
    said, stopped = "", False
    try:
        for piece in session.stream([*messages, question], reuse_cache=True, **options):
            said += piece
            print(shown(piece), end="", flush=True)
    except KeyboardInterrupt:
        stopped = True
    except (PromptTooLong, InvalidInput) as error:
        hint = "; or begin anew with /reset" if isinstance(error, PromptTooLong) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return []
    print(flush=True)
    if stopped and not said:  # before its first word: as if never asked
        return []
    return [question, {"role": "assistant", "content": said}]


def statistics(result: "Result") -> str:
    """One line on how an answer came about."""
    measured = {"prefill": result.prefill_tps, "decode": result.decode_tps}
    rates = [f"{name} {rate:.1f} tokens/s" for name, rate in measured.items() if rate is not None]
    counts = f"{result.prompt_tokens} + {len(result.token_ids)} tokens"
    if result.drafted:
        taken = f"{result.accepted} of {result.drafted} guesses taken"
        rates.append(f"{taken}, {result.tokens_per_call:.2f} tokens a call")
    return ", ".join([counts, *rates, f"ended by {result.finish_reason}"])


def shown(text: str) -> str:
    """What a model says: exact for a file or a pipe, without control characters on a terminal."""
    return printable(text) if sys.stdout.isatty() else text


def typed_lines() -> Iterator[str]:
    """Lines that are not blank from stdin; on a terminal with a prompt and a line to edit."""
    interactive = sys.stdin.isatty()
    if interactive and sys.stdout.isatty():
        with suppress(ImportError):  # Windows' console edits lines by itself
            import readline  # noqa: F401 - `input` edits with it, and remembers
    while True:
        try:
            line = _typed(interactive)
        except (EOFError, KeyboardInterrupt) as end:
            if interactive:
                print(file=sys.stderr)
            if isinstance(end, EOFError):
                return
            raise
        if line.strip():
            yield line.strip()


def _typed(interactive: bool) -> str:
    """The next line; EOFError where there is none."""
    if interactive and sys.stdout.isatty():
        return input("> ")
    if interactive:
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
