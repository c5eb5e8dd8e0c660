"""`ane-book chat`: a conversation line by line, with commands such as /help.

Answers go to stdout, everything else to stderr, so that answers can be piped.
"""

from collections.abc import Callable
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.cli.prefill import PromptCacheFile, opened
from ane_book.cli.terminal import RECIPE, SAMPLING, shown, statistics
from ane_book.errors import InvalidInput, PromptTooLong, printable
from ane_book.text.chat import as_messages
from mlprogram.cli.options import Precision
from mlprogram.terminal import typed_lines

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
    prompt_cache: PromptCacheFile = None,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
) -> None:
    """Talk with a model, line by line.

    /help lists the commands in it, /quit or end of input ends. Ctrl-C stops an answer, or clears
    the line.
    """
    session = load(model, "text-generation", precision, backend, **recipe)
    if adapter is not None:
        session.use(adapter)
    Conversation(session, sampling, draft).run_from(prompt_cache)


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
        self.held = 0  # tokens, after the last answer

    def run_from(self, file: Path | None) -> None:
        """Go on with the conversation of a file, if it exists, and write it, after errors too."""
        if (found := opened(self.session, file)) is not None:
            if found[:1] and found[0]["role"] == "system":
                self.sampling.setdefault("system", found.pop(0)["content"])
            self.messages, self.held = found, self.session.position
            self._tell(f"goes on after {len(found)} messages, {self.held:,} tokens: {file}")
        try:
            self.run()
        finally:  # up to the end of the last answer
            self.session.rewind(min(self.held, self.session.position))
            if file is not None and self.session.position and self.messages:
                said = as_messages(self.messages, self.sampling.get("system"))
                self.session.save_cache(file, messages=said)

    def run(self) -> None:
        """Answer line by line until a command or the end of input ends the conversation."""
        if sys.stdin.isatty():
            tokens = f"{self.session.bundle.manifest.name}, {self.session.context} tokens"
            self._tell(f"{tokens}. /help lists commands, /quit ends, Ctrl-C stops an answer.")
        for line in typed_lines():
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
            self.held = self.session.position

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

    def reset(self, _: str) -> None:
        self.messages, self.last = [], None

    def stats(self, _: str) -> None:
        held = f"{self.session.position} of {self.session.context} tokens held"
        count = sum(message["role"] == "assistant" for message in self.messages)
        self._tell(f"{count} answer{'s' * (count != 1)}, {held}")
        if self.last:
            self._tell(f"the last one: {statistics(self.last)}")

    def _tell(self, text: str) -> None:
        print(printable(text), file=sys.stderr)


#: Command -> its text in /help, and the function that gets the rest of its line.
COMMANDS: dict[str, tuple[str, Callable[[Conversation, str], None]]] = {
    "/help": ("list the commands", Conversation.help),
    "/system": ("show the system prompt; /system TEXT sets it", Conversation.system),
    "/reset": ("begin anew", Conversation.reset),
    "/stats": ("tokens and speed so far", Conversation.stats),
}
ENDS = ("/quit", "/exit")
