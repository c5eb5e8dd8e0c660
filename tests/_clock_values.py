"""What a value comes from, as the reading of `_clock` knows it, and the names that hold values."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["NOTHING", "Clock", "Function", "Imported", "Record", "Scope", "Value", "below",
           "clocks", "counted", "deciding", "under", "union"]  # fmt: skip


@dataclass(frozen=True)
class Clock:
    """The clock that is read in this line.

    counts: it decides how many values there are, or whether, and not only what they are. key: of
    the dictionary that has it under this key alone.
    """

    line: int
    what: str
    counts: bool = False
    key: str | None = None


@dataclass(frozen=True)
class Imported:
    """Something of another module, by its full name."""

    name: str


@dataclass(frozen=True)
class Record:
    """A file of `research/`: its seconds are history."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function, lambda or class of a file that is read, and where its free names are found."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
    scope: "Scope"


Value = frozenset[Clock | Imported | Record | Function]
NOTHING: Value = frozenset()


def union(values: Iterable[Value]) -> Value:
    return NOTHING.union(*values)


def clocks(value: Value) -> Value:
    return frozenset(item for item in value if isinstance(item, Clock))


def counted(value: Value) -> Value:
    """The clocks in the number of a container's values."""
    return frozenset(item for item in clocks(value) if item.counts)


def deciding(value: Value) -> Value:
    """What comes into everything that happens only if this value says so."""
    return frozenset(Clock(item.line, item.what, True) for item in clocks(value))


def under(key: object, value: Value) -> Value:
    """The value, in a dictionary under a key."""
    if not isinstance(key, str):
        return value
    return frozenset(replace(v, key=key) if isinstance(v, Clock) else v for v in value)


def below(key: str, value: Value) -> Value:
    """What a dictionary has under a key."""
    held = (v for v in value if not isinstance(v, Clock) or v.key in (None, key))
    return frozenset(replace(v, key=None) if isinstance(v, Clock) else v for v in held)


class Scope:
    """The names of a module, class, function or comprehension; `around` has the free ones.

    holders: by name, the names of containers that its object stands in, or was taken from. state: a
    count of changes that functions of this scope may notice, shared with the scopes around.
    """

    def __init__(self, file: str, around: "Scope | None" = None):
        self.file, self.around = file, around
        self.names: dict[str, Value] = {}
        self.holders: dict[str, set[str]] = {}
        self.outer: set[str] = set()  # declared global or nonlocal
        self.has_functions = around is None
        self.state: list[int] = around.state if around else [0]

    def owner(self, name: str) -> "Scope | None":
        """The nearest scope that has this name."""
        scope = self.around if name in self.outer else self
        while scope is not None and name not in scope.names:
            scope = scope.around
        return scope

    def find(self, name: str) -> Value:
        owner = self.owner(name)
        return owner.names[name] if owner else NOTHING

    def set(self, name: str, value: Value) -> None:
        if name in self.outer:
            self.add(name, value)
        else:
            self.state[0] += self.has_functions and self.names.get(name) != value
            self.names[name] = value
            self.holders.pop(name, None)

    def add(self, name: str, value: Value) -> None:
        """The object of this name may hold this value too, and with it what holds the object."""
        owner = self.owner(name)
        if owner is None or value <= owner.names[name]:
            return
        owner.names[name] |= value
        owner.state[0] += 1
        for holder in owner.holders.get(name, ()):
            owner.add(holder, value)

    def holds(self, holders: Iterable[str], name: str) -> None:
        """What changes in the object of this name, changes in these too."""
        owner = self.owner(name)
        if owner is not None:
            owner.holders.setdefault(name, set()).update(set(holders) - {name})

    def join(self, other: dict[str, Value]) -> None:
        """Either these names or the others."""
        for name, value in other.items():
            self.names[name] = self.names.get(name, NOTHING) | value
