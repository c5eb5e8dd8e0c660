"""`ane-book chat`: a conversation line by line, with commands such as /help.

Answers go to stdout, everything else to stderr, so that answers can be piped.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.cli.history import LineEditor
from ane_book.cli.load import Opening, load_talker
from ane_book.cli.terminal import RECIPE, SAMPLING, shown, statistics
from ane_book.device import state_folder
from ane_book.errors import InvalidInput, PromptTooLong, printable
from mlprogram.cli.options import Precision
import typer

if TYPE_CHECKING:
    from ane_book.runtime import Result, Session


@options.takes("Recipe", *RECIPE)
@options.takes("Sampling", *SAMPLING)
def chat_command(
    model: options.Model,
    recipe: dict,
    sampling: dict,
    draft: options.Draft = None,
    adapter: options.Adapter = None,
    history: Annotated[
        bool, typer.Option(help="Keep what is typed at a terminal for the arrow keys.")
    ] = True,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
    force: options.Force = False,
) -> None:
    """Talk with a model, line by line.

    /help lists the commands in it, /quit or end of input ends. Ctrl-C stops an answer, or clears
    the line; twice on an empty one it leaves, and what was said is kept for /load.
    """
    how = Opening(precision=precision, backend=backend, force=force)
    session = load_talker(model, how, adapter, **recipe)
    Conversation(session, sampling, draft).run(history)


class Conversation:
    """A conversation with a session. sampling: fields of `Sampling`. draft: as for `stream`."""

    def __init__(self, session: "Session", sampling: dict, draft: str | None = None):
        known = session.bundle.manifest
        if known.tokenizer.chat_template is None:
            raise InvalidInput(f"{known.name} has no chat template; ask it by `ane-book run`")
        self.session, self.sampling, self.draft = session, dict(sampling), draft
        if (effort := sampling.get("reasoning_effort")) is not None:
            session.encode("Hello", effort=effort)  # refused now, not at every line
        self.messages: list[dict[str, str]] = []
        self.last: Result | None = None
        self._filed: list[dict[str, str]] = []  # the messages that a file has

    def run(self, history: bool) -> None:
        """Answer line by line until a command, the end of input or Ctrl-C ends the conversation.

        history: keep the typed lines, and save a conversation that Ctrl-C ends.
        """
        try:
            self._converse(history)
        except KeyboardInterrupt:
            if history and sys.stdin.isatty() and self.messages not in ([], self._filed):
                self._keep()
            raise

    def _converse(self, history: bool) -> None:
        if sys.stdin.isatty():
            tokens = f"{self.session.bundle.manifest.name}, {self.session.context} tokens"
            self._tell(f"{tokens}. /help lists commands, /quit ends, Ctrl-C stops an answer.")
        for line in typed_lines(history):
            try:
                if not line.startswith("/") or line.startswith("//"):
                    self.ask(line.removeprefix("/") if line.startswith("//") else line)
                elif not self.command(line):
                    return
            except PromptTooLong as error:
                self._tell(f"error: {error}; or begin anew with /reset")
            except InvalidInput as error:
                self._tell(f"error: {error}")

    def ask(self, line: str) -> None:
        """Print the answer to a question; Ctrl-C ends the answer, not the program."""
        question = {"role": "user", "content": line}
        said, stopped = "", False
        how = {"reuse_cache": True, "draft": self.draft, **self.sampling}
        stream = self.session.stream([*self.messages, question], **how)
        try:
            for piece in stream:
                said += piece
                print(shown(piece), end="", flush=True)
        except KeyboardInterrupt:
            stopped = True
        finally:
            stream.close()
        print(flush=True)
        self.last = stream.result
        if said or not stopped:  # stopped before its first word, it is as if never asked
            self.messages += [question, {"role": "assistant", "content": said}]

    def command(self, line: str) -> bool:
        """Run a line that begins with /; returns False if it ends the conversation."""
        word, _, rest = line.partition(" ")
        if word in ENDS:
            return False
        if word not in COMMANDS:
            raise InvalidInput(
                f"no command {word!r}; /help lists them, and // begins a line that starts with /"
            )
        COMMANDS[word][1](self, rest.strip())
        return True

    # --- commands

    def help(self, _: str) -> None:
        rows = {name: text for name, (text, _) in COMMANDS.items()}
        rows |= {"/quit": "end; so do /exit and the end of input"}
        self._tell("\n".join(f"{name:13}{text}" for name, text in rows.items()))

    def system(self, text: str) -> None:
        if text:
            from ane_book.text.process import check_text

            check_text(text, "the system prompt")
            self.sampling["system"] = text
        said = self.sampling.get("system")
        self._tell("system prompt: " + ("the model's own" if said is None else said))

    def temperature(self, text: str) -> None:
        self._number("temperature", float, "a number of at least 0, such as 0.7", text)

    def max_tokens(self, text: str) -> None:
        self._number("max_tokens", int, "a whole number of at least 1, such as 100", text)

    def _number(self, name: str, kind: Callable, takes: str, text: str) -> None:
        from ane_book.options import Sampling, checked

        if text:
            try:
                value = kind(text)
            except ValueError:
                raise InvalidInput(f"{name} is {takes}, not {text!r}") from None
            checked(Sampling, self.sampling | {name: value})
            self.sampling[name] = value
        self._tell(f"{name} {checked(Sampling, self.sampling).model_dump()[name]}")

    def save(self, text: str) -> None:
        path = _path(text, "/save")
        self._write(path)
        self._tell(f"saved {_answers(self.messages)} to {path}")

    def _write(self, path: Path) -> None:
        from ane_book.cli.conversation import Saved, SavedMessage, write_conversation

        turns = [SavedMessage.model_validate(message) for message in self.messages]
        system = self.sampling.get("system")
        name = self.session.bundle.manifest.name
        write_conversation(path, Saved(model=name, system=system, messages=turns))
        self._filed = [*self.messages]

    def _keep(self) -> None:
        """Save the conversation in the user's state folder, replacing the last one there."""
        folder = state_folder()
        if folder is None:
            return
        path = folder / "chat-last.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(path)
        except (InvalidInput, OSError) as error:
            self._tell(f"warning: the conversation is not kept: {error}")
        else:
            self._tell(f"the conversation is kept: /load {path} goes on with it")

    def load(self, text: str) -> None:
        from ane_book.cli.conversation import read_conversation

        path = _path(text, "/load")
        saved = read_conversation(path)
        self.messages = [message.model_dump() for message in saved.messages]
        self._filed = [*self.messages]
        self.sampling.pop("system", None)
        if saved.system is not None:
            self.sampling["system"] = saved.system
        name = self.session.bundle.manifest.name
        other = "" if saved.model == name else f", which {saved.model} gave"
        self._tell(f"loaded {_answers(self.messages)} from {path}{other}")

    def reset(self, _: str) -> None:
        self.messages, self.last = [], None

    def stats(self, _: str) -> None:
        held = f"{self.session.position} of {self.session.context} tokens held"
        self._tell(f"{_answers(self.messages)}, {held}")
        if self.last:
            self._tell(f"the last one: {statistics(self.last)}")

    def _tell(self, text: str) -> None:
        print(printable(text), file=sys.stderr)


#: Command -> its text in /help, and the function that gets the rest of its line.
COMMANDS: dict[str, tuple[str, Callable[[Conversation, str], None]]] = {
    "/help": ("list the commands", Conversation.help),
    "/system": ("show the system prompt; /system TEXT sets it", Conversation.system),
    "/temperature": ("show the temperature; /temperature 0.7 sets it", Conversation.temperature),
    "/max": ("show the most tokens of an answer; /max 100 sets it", Conversation.max_tokens),
    "/save": ("/save FILE writes the conversation as JSON", Conversation.save),
    "/load": ("/load FILE goes on with one", Conversation.load),
    "/reset": ("begin anew", Conversation.reset),
    "/stats": ("tokens and speed so far", Conversation.stats),
}
ENDS = ("/quit", "/exit")
LEAVING = "Ctrl-C once more leaves, as /quit does; /save FILE keeps the conversation."


def _answers(turns: list) -> str:
    count = len(turns) // 2
    return f"{count} answer" + "s" * (count != 1)


def _path(text: str, command: str) -> Path:
    if not text:
        raise InvalidInput(f"which file? Such as: {command} talk.json")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidInput(
            f"{text}: this user has no home folder; write the path in full"
        ) from None


def typed_lines(history: bool) -> Iterator[str]:
    """Yield non-blank lines from stdin; on a terminal with a prompt and a line editor."""
    interactive = sys.stdin.isatty()
    editor = None
    if interactive and sys.stdout.isatty():
        editor = LineEditor([*COMMANDS, *ENDS], history)
    leaving = False  # whether Ctrl-C was the last thing typed, on an empty line
    while True:
        try:
            line = editor.read("> ") if editor else _plain_line(interactive)
        except EOFError:
            if interactive:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            cleared = editor is not None and editor.unfinished()
            print("^C" if cleared else "", file=sys.stderr)  # as a shell marks such a line
            if leaving and not cleared:
                raise
            leaving = not cleared
            if leaving:
                print(LEAVING, file=sys.stderr)
            continue
        leaving = False
        if line.strip():
            yield line.strip()


def _plain_line(interactive: bool) -> str:
    """The next line; raises EOFError if there is none."""
    if interactive:
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
