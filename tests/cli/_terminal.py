"""A command whose three streams are a pseudo-terminal of its own, where Ctrl-C is typed."""

from contextlib import suppress
import os
import re
import select
import signal
import subprocess
import time

from _command import COMMAND, ENVIRONMENT
from _patience import HANGING, Guard


def attend() -> None:
    """A shell ignores SIGINT for what it starts in the background, and nohup SIGHUP: for tests and
    their children too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """command: what is run, by default `ane-book`. options: of subprocess.Popen, streams too."""

    def __init__(self, *arguments, command: list[str] = COMMAND, **options):
        import fcntl
        import pty
        import termios

        self.ours, theirs = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], start_new_session=True,
            preexec_fn=lambda: (attend(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
            **{"env": os.environ | ENVIRONMENT} | streams | options,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def until(self, pattern: str, seconds: float = HANGING) -> re.Match:
        """What was shown up to here, once the rest of it matches; the match is taken off."""
        guard = Guard(seconds)
        while not (found := re.search(pattern, self.shown, re.S)):
            assert self._more(guard), self.shown
        self.shown = self.shown[found.end() :]
        return found

    def rest(self) -> str:
        """All that is shown until the command ends."""
        guard = Guard()
        while self._more(guard):
            pass
        return self.shown

    def interrupt(self, pattern: str) -> re.Match:
        """Ctrl-C at a prompt, and what is shown after it.

        Python misses one that comes just before it waits for a key, and then needs another.
        """
        time.sleep(0.5)
        self.type("\x03")
        with suppress(AssertionError, TimeoutError):
            return self.until(pattern, 60)
        self.type("\x03")
        return self.until(pattern)

    def _more(self, guard: Guard) -> bool:
        """Read what is shown next; False once the other end is closed."""
        ready, _, _ = select.select([self.ours], [], [], guard.left())
        assert ready, f"it hangs after: {self.shown}"
        try:
            chunk = os.read(self.ours, 4096)
        except OSError:  # Linux reports the other end's closing as an error
            return False
        self.shown += chunk.decode(errors="replace")
        return chunk != b""
