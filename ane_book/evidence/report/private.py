"""Keep personal data out of reports: paths, and the names of the user and the host."""

from collections.abc import Iterator
from contextlib import suppress
import getpass
from pathlib import Path
import re
import socket

from ane_book.errors import InvalidInput

#: An absolute path on macOS, Linux or Windows; web addresses do not match.
PATH = re.compile(
    r"(?<![\w/.:~-])(?:~|[A-Za-z]:)?[\\/](?:Users|home|private|tmp|var|root|opt|Volumes|work|usr"
    r"|Library|Applications|mnt|srv|data)[\\/][^\s'\"<>|:,;)]*"
)


def scrub(text: str) -> str:
    """Replace absolute paths and this machine's names in a text."""
    for what, pattern in _personal():
        text = pattern.sub(what, text)
    return text


def check(text: str) -> None:
    """Raise InvalidInput if the text of a report contains an absolute path or such a name."""
    if found := next(filter(None, (pattern.search(text) for _, pattern in _personal())), None):
        around = text[max(0, found.start() - 40) : found.start()]
        raise InvalidInput(
            f"the report would hold a path or a name of this machine, after {around!r}; it was not "
            "written: please tell us"
        )


def _personal() -> Iterator[tuple[str, re.Pattern]]:
    """Yield (replacement, pattern) for everything personal."""
    yield "(a path)", PATH
    names = set()
    with suppress(Exception):  # a user without a name, a machine without one
        names |= {getpass.getuser(), Path.home().name}
    with suppress(OSError):
        names |= {socket.gethostname(), socket.gethostname().split(".")[0]}
    plain = {"root", "user", "runner", "localhost", "home", "admin", "main", "mac", "macbook"}
    for name in names:
        if len(name) > 3 and name.lower() not in plain:
            yield "(a name)", re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
