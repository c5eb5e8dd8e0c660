"""Calls of tools, read while a model writes them.

A reader takes the text behind the first opening of a call, piece by piece, and yields each call's
name as soon as it is whole, then its arguments as they come. Joined, the arguments are JSON; those
of the last call are not if the answer ran out of tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import json
import re
from typing import Protocol

__all__ = ["CallPart", "CallReader", "JsonReader", "overlap"]


@dataclass(frozen=True)
class CallPart:
    """A part of a call.

    index: which call of the answer. name: of the function, where the call begins; else "".
    arguments: the next characters of their JSON.
    """

    index: int
    name: str = ""
    arguments: str = ""


class CallReader(Protocol):
    """whole: whether every call that has begun has ended. held: the text that is not yet known to
    be a part of one."""

    whole: bool
    held: str

    def add(self, text: str) -> Iterator[CallPart]:
        """Take the next piece of the text."""


class JsonReader:
    """Reads calls whose arguments are an object of JSON, behind a head that has the name.

    head: matches what stands before an object, with the name, as JSON or plain, as its group.
    """

    def __init__(self, head: str):
        self.whole, self._begun = True, 0
        self._head = re.compile(head + r"\s*(?=\{)")
        self.held = ""
        self._depth, self._quoted, self._escaped = 0, False, False

    def add(self, text: str) -> Iterator[CallPart]:
        self.held += text
        while self.held:
            if self.whole:
                if (found := self._head.search(self.held)) is None:
                    return
                self.held, self.whole = self.held[found.end() :], False
                yield CallPart(self._begun, _plain(found[1]))
                self._begun += 1
            end = next((i + 1 for i, sign in enumerate(self.held) if self._ends(sign)), None)
            yield CallPart(self._begun - 1, arguments=self.held[:end])
            self.whole, self.held = end is not None, self.held[end:] if end else ""

    def _ends(self, sign: str) -> bool:
        """Whether the object ends with this character."""
        if self._quoted:
            self._quoted = self._escaped or sign != '"'
            self._escaped = sign == "\\" and not self._escaped
            return False
        self._quoted = sign == '"'
        self._depth += (sign in "{[") - (sign in "}]")
        return self._depth == 0 and sign == "}"


def _plain(name: str) -> str:
    return json.loads(name) if name.startswith('"') else name


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
