"""Calls of tools, read while a model writes them.

A reader takes the text behind the first opening of a call, piece by piece, and yields each call's
name as soon as it is whole, then its arguments as they come. Joined, the arguments are JSON; those
of the last call are not if the answer ran out of tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import json
import re
from typing import ClassVar, Protocol


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


class ArgumentReader:
    """Reads calls whose arguments stand one by one, each with its name: what such readers share.

    BEGINS matches where a call begins, with the function's name as its group; NEXT an argument,
    with its name, or without one the call's end.
    """

    BEGINS: ClassVar[str]
    NEXT: ClassVar[str]

    def __init__(self) -> None:
        self.whole, self.held = True, ""
        self._begun, self._name = 0, ""
        self._key, self._first = "", True  # the argument that is read, "" between two of them

    def add(self, text: str) -> Iterator[CallPart]:
        self.held += text
        while step := self._step():
            yield from step

    def _step(self) -> list[CallPart]:
        """What the text that is held makes known; nothing where it has to go on first."""
        if self.whole:
            return self._begin()
        return self._value() if self._key else self._between()

    def _begin(self) -> list[CallPart]:
        if (found := re.search(self.BEGINS, self.held)) is None:
            return []
        self.held, self.whole, self._first = self.held[found.end() :], False, True
        self._begun, self._name = self._begun + 1, found[1]
        return [CallPart(self._begun - 1, self._name)]

    def _between(self) -> list[CallPart]:
        found = re.match(self.NEXT, self.held, re.DOTALL)
        if found is None:
            return []
        self.held = self.held[found.end() :]
        before, self._first = "{" if self._first else ", ", False
        if found[1] is None:
            self.whole = True
            return [self._part("{}" if before == "{" else "}")]
        self._key = found[1]
        self._open()
        return [self._part(f"{before}{json.dumps(self._key, ensure_ascii=False)}: ")]

    def _open(self) -> None:
        """Make ready for the value of the argument whose name was read."""

    def _value(self) -> list[CallPart]:
        """The next characters of a value, as JSON; sets `_key` to "" at its end."""
        raise NotImplementedError

    def _part(self, arguments: str) -> CallPart:
        return CallPart(self._begun - 1, arguments=arguments)


def _plain(name: str) -> str:
    return json.loads(name) if name.startswith('"') else name
