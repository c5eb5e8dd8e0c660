"""The history of typed lines for the arrow keys, in a file that only the user may read.

Without a home folder, or if the file cannot be written, a conversation goes on without it.
"""

from collections.abc import Sequence
from contextlib import suppress
import os
from pathlib import Path
import sys
from typing import Any

from ane_book.device import state_folder
from ane_book.errors import printable

MOST = 1000  # lines that are kept


class LineEditor:
    """Reads lines from a terminal, with readline if it is available.

    words: completed by the tab key at the beginning of a line. kept: whether lines go to a file.
    """

    def __init__(self, words: Sequence[str], kept: bool):
        self._words = words
        self._file: Path | None = None
        self._readline: Any = None
        with suppress(ImportError):  # Windows' console edits lines by itself
            import readline

            self._readline = readline
            readline.set_auto_history(False)
            readline.set_completer(self._complete)
            readline.set_completer_delims(" ")
            libedit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
            if kept:
                self._open()

    def read(self, prompt: str) -> str:
        """The next line; raises EOFError if there is none."""
        line = input(prompt)
        if line.strip() and self._readline:
            self._keep(line)
        return line

    def unfinished(self) -> str:
        """The text of the line when Ctrl-C ended `read`; "" if it is empty or unknown."""
        return self._readline.get_line_buffer() if self._readline else ""

    def _open(self) -> None:
        """Load the history, creating its file so that nobody else may read it."""
        folder = state_folder()
        if folder is None:
            return
        path = folder / "chat-history"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._readline.read_history_file(path)
        except OSError as error:
            self._give_up(path, error)
        else:
            self._file = path
            self._readline.set_history_length(MOST)

    def _keep(self, line: str) -> None:
        """Append a line to the file at once, since another conversation may append its own."""
        self._readline.add_history(line)
        if self._file is None:
            return
        try:
            if hasattr(self._readline, "append_history_file"):
                self._readline.append_history_file(1, self._file)
            else:  # libedit
                self._readline.write_history_file(self._file)
        except OSError as error:
            self._give_up(self._file, error)

    def _give_up(self, path: Path, error: OSError) -> None:
        self._file = None
        text = f"warning: what is typed is not kept: {path}: {error.strerror or error}"
        print(printable(text), file=sys.stderr)

    def _complete(self, text: str, number: int) -> str | None:
        found = [word for word in self._words if text.startswith("/") and word.startswith(text)]
        return found[number] if number < len(found) else None
