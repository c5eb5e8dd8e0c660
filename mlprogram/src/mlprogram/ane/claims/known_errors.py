"""The index of errors: what Core ML, its compilers and coremltools print, and what to do then.

    from mlprogram.ane.claims import known_errors

    found = known_errors.explain("... ANECCompile() FAILED ...")
    found[0].means, found[0].do  # of the entry whose string is the longest in the text

The entries are in `known_errors.toml`, each with the threads in which people reported its string.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re
from textwrap import fill
import tomllib

#: Fewer characters than this are a part of too many messages to be looked for in them.
PART = 8

INDEX = Path(__file__).with_name("known_errors.toml")


@dataclass(frozen=True)
class KnownError:
    """A failure that people met.

    messages: parts of what is printed, as it is printed. means, do: what happened, and what to do.
    sure: "measured" where cause and remedy were reproduced, "reported" by somebody, or "inferred"
    from the words and the source code. sources: addresses of threads that have one of the messages.
    """

    id: str
    messages: tuple[str, ...]
    printed_by: str
    means: str
    do: str
    sure: str
    sources: tuple[str, ...]

    def text(self) -> str:
        """All of it, for a reader of a terminal."""
        parts = [
            f"{self.id} ({self.printed_by}; {self.sure})",
            fill(self.means, 88, initial_indent="  ", subsequent_indent="  "),
            fill(f"Do: {self.do}", 88, initial_indent="  ", subsequent_indent="  "),
            *(f"  {source}" for source in self.sources),
        ]
        return "\n".join(parts)


@cache
def load() -> dict[str, KnownError]:
    """All entries by id."""
    tables = tomllib.loads(INDEX.read_text("utf-8"))["error"]
    lists = ("messages", "sources")
    return {t["id"]: KnownError(**t | {key: tuple(t[key]) for key in lists}) for t in tables}


def explain(text: str) -> list[KnownError]:
    """The entries that fit `text` best first: one of their messages occurs in it, or it in one.

    Case and white space do not count, so that a log may be pasted as it is, wrapped and quoted.
    The longer the part in common, the better an entry fits.
    """
    heard = _plain(text)
    if code := re.fullmatch(r"(?:error )?(?:code )?(-\d+)", heard):
        heard = f"error {code[1]}"
    shared = {
        entry: max(_in_common(_plain(message), heard) for message in entry.messages)
        for entry in load().values()
    }
    return sorted((entry for entry in shared if shared[entry]), key=lambda entry: -shared[entry])


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _in_common(message: str, heard: str) -> int:
    """How many characters of the one are all in the other: 0, unless one has the other whole.

    A number at the end of the one has to end in the other too: error -14 is not error -146.
    """
    part, whole = sorted((message, heard), key=len)
    found = len(part) >= PART and re.search(re.escape(part) + r"((?<!\d)|(?!\d))", whole)
    return len(part) if found else 0
