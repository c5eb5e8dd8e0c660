"""API keys, each with a name and its own limits, as a TOML file has them.

    [editor]
    key = "..."
    running = 2      # requests at once
    minute = 30      # requests in any 60 s

What goes beyond a limit is refused with 429 and the seconds to wait, which clients heed. A limit is
for requests that have a body; to list models counts for none. Wrong keys are answered the later,
the more there were in the last minute.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
import hmac
import math
import os
from pathlib import Path
from time import monotonic
import tomllib

from ane_book.errors import InvalidInput
from ane_book.options import Whole
from ane_serve.api.refusal import Refusal
from pydantic import BaseModel, ConfigDict, Field, ValidationError

MINUTE = 60.0  # seconds
STEP, MOST = 0.2, 10.0  # seconds that an answer to a wrong key waits for each in a minute; at most


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str = Field(pattern="^[!-~]+$")
    running: Whole | None = Field(None, ge=1)
    minute: Whole | None = Field(None, ge=1)


@dataclass
class Key:
    """A key that clients may show. running, minute: most requests at once, and in any 60 s.

    The event loop alone counts, so no lock is needed.
    """

    name: str
    key: str
    running: int | None = None
    minute: int | None = None
    _running: int = 0
    _begun: deque[float] = field(default_factory=deque)  # of the last 60 s

    @contextmanager
    def used(self) -> Iterator[None]:
        """While a request runs; raises Refusal for one too many."""
        now = _forget(self._begun)
        if self.running is not None and self._running >= self.running:
            raise _refused(f"{self._running} requests at once, as many as may", 1)
        if self.minute is not None and len(self._begun) >= self.minute:
            wait = max(1, math.ceil(self._begun[0] + MINUTE - now))
            raise _refused(f"{self.minute} requests in a minute, as many as may", wait)
        self._begun.append(now)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _forget(moments: deque[float]) -> float:
    """Drop those that are a minute ago; returns now."""
    now = monotonic()
    while moments and moments[0] <= now - MINUTE:
        moments.popleft()
    return now


class WrongKeys:
    """The wrong keys of the last minute, whoever showed them; a right one never waits."""

    def __init__(self) -> None:
        self._shown: deque[float] = deque(maxlen=int(MOST / STEP))

    def wait(self) -> float:
        """Count one more; returns the seconds that its answer has to wait."""
        self._shown.append(_forget(self._shown))
        return len(self._shown) * STEP


def _refused(said: str, seconds: int) -> Refusal:
    message = f"this API key has {said}; ask again in {seconds} s"
    return Refusal(429, message, code="rate_limit_exceeded", retry=seconds)


def find_key(keys: Sequence[Key], shown: str) -> Key | None:
    """The key that is shown; the time it takes says nothing of what is right in it."""
    given = shown.encode("latin-1")
    return [*(each for each in keys if hmac.compare_digest(given, each.key.encode())), None][0]


def check_keys(keys: Sequence[Key]) -> None:
    """Raise InvalidInput where two names have one key, or two keys one name."""
    names = {each.key: each.name for each in keys}
    for each in keys:
        if names[each.key] != each.name:
            raise InvalidInput(f"{each.name} and {names[each.key]} have the same API key")
    named = [each.name for each in keys]
    if twice := [name for name in named if named.count(name) > 1]:
        raise InvalidInput(
            f"two API keys are named {twice[0]!r}, and logs and caches go by the name; rename one: "
            "'key' is the one of the environment"
        )


def read_keys(file: Path) -> list[Key]:
    """The keys in a TOML file; raises InvalidInput, which quotes no key."""
    try:
        if os.name == "posix" and file.stat().st_mode & 0o007:
            raise InvalidInput(f"{file}: others can get at these keys; chmod 600 it")
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"{file} is no TOML: {error}") from None
    if not tables:
        raise InvalidInput(f'{file} has no key; write a table for each: [NAME], then key = "..."')
    return [_entry(f"{file}: [{name}]", name, table) for name, table in tables.items()]


def _entry(place: str, name: str, table: object) -> Key:
    try:
        return Key(name, **_Entry.model_validate(table).model_dump())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if where == "key":
        raise InvalidInput(f"{place}: key has to be a text of ASCII's letters, digits and marks")
    raise InvalidInput(f"{place}: {where} {first['msg']}; a key has key, running and minute")
