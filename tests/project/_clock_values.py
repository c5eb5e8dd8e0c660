"""What a value comes from, as the reading of `_clock` knows it, and the names that hold values."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["KEYS", "NOTHING", "Clock", "Function", "Imported", "Mapping", "Record", "Scope",
           "Value", "below", "clocks", "counted", "deciding", "elements", "loose", "plain",
           "somewhere", "step", "truth", "under", "union"]  # fmt: skip

KEYS = "the keys"  # the step to a dictionary's keys
DEEPEST = 4  # containers in containers that are told apart


@dataclass(frozen=True)
class Clock:
    """The clock that is read in this line.

    counts: it decides how many values there are, or whether, and not only what they are. path: the
    steps to it from the outermost container inwards. A step is a key, a position, or None for any.
    """

    line: int
    what: str
    counts: bool = False
    path: tuple[str | int | None, ...] = ()


@dataclass(frozen=True)
class Mapping:
    """A dictionary: whoever goes through it gets its keys."""

    path: tuple[str | int | None, ...] = ()


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


Value = frozenset[Clock | Mapping | Imported | Record | Function]
NOTHING: Value = frozenset()


def union(values: Iterable[Value]) -> Value:
    return NOTHING.union(*values)


def clocks(value: Value) -> Value:
    return frozenset(item for item in value if isinstance(item, Clock))


def counted(value: Value) -> Value:
    """The clocks in the number of a container's values."""
    return frozenset(item for item in clocks(value) if item.counts and not item.path)


def truth(value: Value) -> Value:
    """The clocks by which it is true or false: a container is true for what is in it."""
    return frozenset(item for item in clocks(value) if not item.path)


def plain(value: Value) -> Value:
    """The value, where it is taken for a number or a text: no dictionary with times is one."""
    keys = {item for item in clocks(value) if isinstance((*item.path, None)[0], str)}
    return value - keys


def deciding(value: Value) -> Value:
    """What comes into everything that happens only if this value says so."""
    return frozenset(Clock(item.line, item.what, True) for item in clocks(value))


def step(key: ast.AST | None) -> str | int | None:
    """The step to what stands under this key or at this position."""
    found = key.value if isinstance(key, ast.Constant) else None
    return found if isinstance(found, str) or (type(found) is int and found >= 0) else None


def under(key: str | int | None, value: Value) -> Value:
    """The value, in a container."""
    return frozenset(
        replace(v, path=(key, *v.path)[:DEEPEST]) if isinstance(v, Clock | Mapping) else v
        for v in value
    )


def below(key: str | int | None, value: Value) -> Value:
    """What a container has there."""
    found = set()
    for item in value:
        first, *rest = getattr(item, "path", ()) or (Mapping,)
        if first is Mapping:  # nobody knows what has it, and it may be there
            kept = not isinstance(item, Mapping) and (key != KEYS or item in counted(value))
            found |= {item} if kept else set()
        elif first == key or (KEYS not in (first, key) and None in (first, key)):
            found.add(replace(item, path=tuple(rest)))
    return frozenset(found)


def elements(value: Value) -> Value:
    """What a loop over it goes through."""
    return counted(value) | below(KEYS if Mapping() in value else None, value)


def somewhere(value: Value) -> Value:
    """The value's clocks, wherever they are in what is made of it."""
    return frozenset(replace(v, path=(), counts=v.counts and not v.path) for v in clocks(value))


def loose(value: Value) -> Value:
    """The value, after something that may have moved what it holds: positions say nothing now."""
    return frozenset(
        replace(v, path=tuple(s if isinstance(s, str) else None for s in v.path))
        if isinstance(v, Clock | Mapping) else v
        for v in value
    )  # fmt: skip


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
        self.comprehension = False
        self.has_functions = around is None
        self.state: list[int] = around.state if around else [0]

    def owner(self, name: str) -> "Scope | None":
        """The nearest scope that has this name."""
        scope = self.around if name in self.outer else self
        while scope is not None and name not in scope.names:
            scope = scope.around
        return scope

    def module(self) -> "Scope":
        return self.around.module() if self.around else self

    def find(self, name: str) -> Value:
        owner = self.owner(name)
        return owner.names[name] if owner else NOTHING

    def set(self, name: str, value: Value) -> None:
        if name in self.outer and self.owner(name):
            self.add(name, value)
        elif name in self.outer:  # a global that only functions assign
            self.module().names[name] = value
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
            owner.add(holder, somewhere(value))

    def holds(self, holders: Iterable[str], name: str) -> None:
        """What changes in the object of this name, changes in these too."""
        owner = self.owner(name)
        if owner is not None:
            owner.holders.setdefault(name, set()).update(set(holders) - {name})

    def join(self, other: dict[str, Value]) -> None:
        """Either these names or the others."""
        for name, value in other.items():
            self.names[name] = self.names.get(name, NOTHING) | value
