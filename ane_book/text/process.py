"""`TextProcess`: run a tokenizer and chat templates in a process with limits of time and memory.

Both are programs that came with the model. A template of one line can ask for 10^9 characters, a
regular expression of ten characters can run for years, and `tokenizers`, which is Rust, ends its
process where it finds no memory. In a process of their own all this becomes one InvalidInput, and
the next call starts a new process. It starts in a tenth of a second, holds 25 MB and what the
tokenizer takes, and a call costs some 0.1 ms. A Mac limits time alone; Windows limits neither, and
there it only keeps a crash apart.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
from threading import Lock
from typing import Any
import weakref

from ane_book.errors import BackendUnavailable, InvalidInput
import mlprogram

SECONDS = 20.0  # of processor time for a call; 262,144 tokens load, or a million characters, in 2
MEMORY = 2 << 30  # bytes of address space; 262,144 tokens with 520,000 merges take 0.4

CODE = "import sys; sys.path[:] = sys.argv[3:]; from ane_book.text.worker import main; "
CODE += "main(float(sys.argv[1]), int(sys.argv[2]))"

_all: weakref.WeakSet["TextProcess"] = weakref.WeakSet()
_ahead: list[subprocess.Popen] = []


def _unlock() -> None:
    for text in _all:  # after a fork nobody is left who would release it
        text._lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class TextProcess:
    """Calls a tokenizer and chat templates in their process; several threads may share one.

    Every call raises InvalidInput where template or tokenizer fail or go beyond the limits, and
    BackendUnavailable where this machine starts no process.
    """

    def __init__(self):
        self._lock = Lock()
        self._file: Path | None = None
        self._start()
        _all.add(self)

    def load(self, file: Path) -> None:
        """Take the tokenizer of a tokenizer.json, without its settings to cut or fill texts."""
        if not file.is_file():
            raise InvalidInput("there is no such file")
        self._file = file
        self._call("load", path=str(file))

    def render(
        self,
        template: str,
        messages: list[dict],
        bos_token: str | None = None,
        eos_token: str | None = None,
        today: date | None = None,
        tools: Sequence[dict] | None = None,
        effort: str | None = None,
    ) -> str:
        """Render messages as `text.template.render` does, at the beginning of a day or now."""
        tokens = {"bos_token": bos_token, "eos_token": eos_token, "effort": effort}
        given = {"messages": messages, "tools": tools, "day": today and today.isoformat()}
        return self._call("render", template=template, **given, **tokens)

    def encode(self, text: str, special: bool, most: int | None = None) -> list[int]:
        """Token ids; `special`: with those that the tokenizer puts around a text.

        most: cut the text, not what is put around it, until there are no more tokens than this.
        """
        return self._call("encode", text=text, special=special, most=most)

    def literal(self, value: Any, control: Sequence[int], cut: str) -> Any:
        """A JSON value whose texts, keys included, have `cut` within what would become a token of
        `control`; the parts between cuts, encoded one by one, become none."""
        return self._call("literal", value=value, control=control, cut=cut)

    def locate(self, text: str) -> list[tuple[int, int, int]]:
        """Encode a text; returns the id of each token, and its start and end in characters."""
        return self._call("locate", text=text)

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of token ids; special tokens give none."""
        return self._call("decode", sequences=sequences)

    def token_bytes(self, token_ids: Sequence[int], first: bool) -> list[bytes]:
        """What each token adds to a text, or is at its beginning (`ane_book.text.token_bytes`)."""
        found = self._call("token_bytes", tokens=token_ids, first=first)
        return [each.encode("latin-1") for each in found]

    def token_to_id(self, token: str) -> int | None:
        return self._call("token_to_id", token=token)

    def _call(self, call: str, **arguments):
        with self._lock:
            if self._owner != os.getpid() or self._process.poll() is not None:
                self._stop()
                self._start()  # a fork shares the parent's; one that a limit ended is gone
                if self._file and call != "load":
                    self._exchange("load", path=str(self._file))
            return self._exchange(call, **arguments)

    def _exchange(self, call: str, **arguments):
        left = memoryview(json.dumps({"call": call, **arguments}).encode() + b"\n")
        parts: list[bytes] = []
        try:
            while left:
                left = left[self._requests.write(left) :]
            while part := self._answers.read(1 << 20):
                parts.append(part)
                if part.endswith(b"\n"):
                    break
        except BrokenPipeError:
            pass
        except BaseException:  # Ctrl-C: nobody would read the answer, so the next call must not
            self._stop()
            raise
        if not (line := b"".join(parts)).endswith(b"\n"):  # the process has ended
            raise InvalidInput(_ended(call, self._process.wait()))
        answer = json.loads(line)
        if "error" in answer:
            raise InvalidInput(answer["error"])
        return answer["value"]

    def _start(self) -> None:
        self._process = _ahead.pop() if _ahead else _started()
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._owner = os.getpid()
        self._stop = weakref.finalize(self, _stop, self._process, self._owner)


def start_ahead() -> None:
    """Start the process of the next `TextProcess`, for a command that knows of it before the model
    is opened. Where it cannot be started, that one says so."""
    with suppress(BackendUnavailable):
        _ahead.append(_started())


def _started() -> subprocess.Popen:
    # Isolated (-I, -S) and with this very path it finds what this process has found.
    homes = (Path(__file__).parents[2], Path(mlprogram.__file__).parents[1])
    path = [folder for folder in sys.path if folder]
    path = [*(str(home) for home in homes if str(home) not in path), *path]
    command = [sys.executable, "-I", "-S", "-c", CODE, str(SECONDS), str(MEMORY), *path]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    pipe = subprocess.PIPE
    try:  # without buffers, whose locks and contents a fork would copy
        return subprocess.Popen(
            command, 0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError as error:
        raise BackendUnavailable(
            f"{sys.executable or 'Python'} cannot be started for the tokenizer: {error}"
        ) from None


def check_text(text: str, what: str, place: int = 0) -> None:
    """Raise InvalidInput for a text that no file could hold.

    what: its name. place: where in it this text begins, in characters.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} is not valid text at character {place + error.start}: {error.reason}"
        ) from None


def _stop(process: subprocess.Popen, owner: int) -> None:
    """End a process that holds nothing worth keeping; a fork leaves its parent's alone."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        pipe.close()


def _ended(call: str, code: int) -> str:
    part = "chat template" if call == "render" else "tokenizer"
    if code == -getattr(signal, "SIGPROF", 0):
        return f"the model's {part} took more than {SECONDS:g} s of processor time"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the model's {part} broke down, as it does beyond {MEMORY >> 30} GiB of memory ({name})"
