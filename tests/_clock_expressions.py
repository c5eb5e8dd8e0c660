"""What the value of an expression comes from, calls included: half of the reading of `_clock`.

Functions of the file, and of the tests' own modules, are read where they are called. One that is
handed to another function may be called by it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
import re

from _clock_values import (
    NOTHING,
    Clock,
    Function,
    Imported,
    Record,
    Scope,
    Value,
    below,
    clocks,
    counted,
    under,
    union,
)

CLOCKS = re.compile(
    r"time\.(?:perf_counter|process_time|monotonic|thread_time|time|clock_gettime)(?:_ns)?"
    r"|timeit\.\w+|datetime(?:\.\w+)?\.(?:now|utcnow)|os\.times"
)
RECORDS = re.compile(r"ane_book\.(?:records|claims)\.\w+")
FOLDERS = {"research", "measurements"}  # of records
ENDS = re.compile(r".*_(?:cold|warm|median|seconds|tps)|.*speed_to_.*")  # of names
#: Classes of the library that hold times which somebody gives them.
GIVEN = {"Answer", "Roofs"}
SIZES = {"len", "type", "isinstance", "hasattr", "callable", "keys"}
FAILS = {"fail", "exit", "_exit", "abort"}
CHANGES = {"append", "add", "extend", "insert", "update", "setdefault", "put", "write", "remove",
           "discard", "pop", "clear"}  # fmt: skip
DEEPEST = 8  # call within call


def called(node: ast.AST) -> str:
    """The last part of the name that a call calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def fails(node: ast.AST) -> bool:
    """Whether the file may fail inside this statement."""
    return any(isinstance(n, ast.Raise) or called(n) in FAILS for n in ast.walk(node))


def roots(node: ast.AST) -> set[str]:
    """The names of which this may be the object, or a part: `times[n]`, `sorted(times.items())`."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts: list[ast.AST] = []
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        parts = [node.value]
    elif isinstance(node, ast.Tuple | ast.List):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.values
    elif called(node) in ("items", "values", "get", "setdefault"):
        parts = [node.func]
    elif called(node) in ("zip", "enumerate", "sorted", "reversed", "list", "dict"):
        parts = node.args
    return set().union(*map(roots, parts))


def names_of(target: ast.AST) -> set[str]:
    """The names that an assignment binds, or whose objects it changes."""
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


@dataclass(frozen=True, order=True)
class Verdict:
    """line: of what may fail. clocks: what is read, and in which line."""

    file: str
    line: int
    clocks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: by {', '.join(self.clocks)}"


class Expressions:
    """timed: names of functions, attributes and keys whose values come from a clock anywhere.

    attributes: what the attributes of any object of the file may hold, by their names. decided:
    what decides whether the statement that is read is run.
    """

    def __init__(self, timed: frozenset[str]):
        self.timed = timed
        self.verdicts: set[Verdict] = set()
        self.attributes: dict[str, Value] = {}
        self.methods: dict[str, list[Function]] = {}
        self.decided, self.returned, self.active = NOTHING, [], []
        self.known: dict[tuple, tuple[int, Value]] = {}

    def judge(self, node: ast.AST, value: Value, scope: Scope) -> None:
        """What the file fails by, in this place."""
        if found := clocks(value | self.decided):
            said = sorted({f"{clock.what} ({clock.line})" for clock in found})
            self.verdicts.add(Verdict(scope.file, node.lineno, tuple(said)))

    def value(self, node: ast.AST, scope: Scope) -> Value:
        handler = getattr(self, f"of_{type(node).__name__}", self.parts)
        return handler(node, scope)

    def parts(self, node: ast.AST, scope: Scope) -> Value:
        """Any of its parts: a container, a sum, a comparison chain, an f-string."""
        return union(self.value(part, scope) for part in ast.iter_child_nodes(node))

    def of_Constant(self, node: ast.Constant, scope: Scope) -> Value:
        text = node.value if isinstance(node.value, str) else ""
        return frozenset([Record()]) if FOLDERS & set(text.split("/")) else NOTHING

    def of_Name(self, node: ast.Name, scope: Scope) -> Value:
        return scope.find(node.id)

    def of_Lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        scope.has_functions = True
        return frozenset([Function(node, scope)])

    def of_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def of_Compare(self, node: ast.Compare, scope: Scope) -> Value:
        """That something was timed, or under which name, is not how long it took."""
        if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return NOTHING
        if all(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            left, *right = (self.value(part, scope) for part in (node.left, *node.comparators))
            return clocks(left) | counted(union(right))
        return clocks(self.parts(node, scope))

    def of_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        if modules := [item for item in value if isinstance(item, Imported)]:
            return frozenset(Imported(f"{module.name}.{node.attr}") for module in modules)
        if node.attr in ("shape", "size", "ndim", "dtype"):
            return counted(value)
        value = value - {item for item in value if isinstance(item, Function)}
        value |= self.attributes.get(node.attr, NOTHING)
        for method in self.methods.get(node.attr, []):
            if any("property" in ast.dump(d) for d in getattr(method.node, "decorator_list", [])):
                value |= self.call(method, [value], {})
        return value | self.by_name(node.attr, value, node)

    def by_name(self, name: str, value: Value, node: ast.AST) -> Value:
        """The library's times go by their names; in a record they are history."""
        if not (name in self.timed or ENDS.fullmatch(name)) or Record() in value:
            return NOTHING
        return frozenset([Clock(node.lineno, name)])

    def of_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        key = getattr(node.slice, "value", None)
        if not isinstance(key, str):
            return value | clocks(self.value(node.slice, scope))
        return below(key, value) | self.by_name(key, value, node)

    def of_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        """Which clock is under which key, where keys are written out."""
        found = NOTHING
        for key, value in zip(node.keys, node.values, strict=True):
            found |= under(getattr(key, "value", None), self.value(value, scope))
            found |= clocks(self.value(key, scope)) if key else NOTHING
        return found

    def of_ListComp(self, node: ast.ListComp, scope: Scope) -> Value:
        inner, number = Scope(scope.file, scope), NOTHING
        for loop in node.generators:
            self.each(loop.target, loop.iter, inner)
            number |= counted(self.value(loop.iter, inner))
            for test in loop.ifs:
                number |= clocks(self.value(test, inner))
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        value = union(self.value(part, inner) for part in made)
        return value | frozenset(Clock(item.line, item.what, True) for item in number)

    of_SetComp = of_GeneratorExp = of_DictComp = of_ListComp

    def of_Yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> Value:
        value = self.value(node.value, scope) if node.value else NOTHING
        if self.returned:
            self.returned[-1] |= value | self.decided
        return NOTHING

    of_YieldFrom = of_Yield

    def of_Call(self, node: ast.Call, scope: Scope) -> Value:
        function, name = self.value(node.func, scope), called(node)
        given = [self.value(argument, scope) for argument in node.args]
        named = {word.arg: self.value(word.value, scope) for word in node.keywords}
        every = union([*given, *named.values()])
        if name.startswith("assert"):
            self.judge_call(node, every, scope)
        handlers = [item for item in function if isinstance(item, Function)]
        if name in SIZES and not handlers:
            return counted(every | (self.receiver(node, scope) or NOTHING))
        result = self.imported(node, function, every)
        if name == "getattr" and isinstance(node.args[1], ast.Constant):
            result |= self.by_name(node.args[1].value, every, node)
        for handler in handlers:
            result |= self.call(handler, given, named)
        for item in every:  # what is handed over may be called there
            if isinstance(item, Function) and not handlers:
                result |= self.call(item, [], {})
            elif isinstance(item, Imported) and CLOCKS.fullmatch(item.name):
                result |= {Clock(node.lineno, item.name)}
        if not handlers or any(isinstance(item.node, ast.ClassDef) for item in handlers):
            result |= {item for item in every if isinstance(item, Clock | Record)}
        return result | self.method(node, given, named, scope)

    def judge_call(self, node: ast.Call, every: Value, scope: Scope) -> None:
        if clocks(every):
            self.judge(node, every, scope)

    def imported(self, node: ast.Call, function: Value, every: Value) -> Value:
        """What a function of another module returns, as far as its name says."""
        names = [item.name for item in function if isinstance(item, Imported)]
        if any(CLOCKS.fullmatch(name) for name in names):
            return frozenset(Clock(node.lineno, name) for name in names)
        if any(RECORDS.match(name) for name in names):
            return frozenset([Record()])
        if any(name.rpartition(".")[2] in GIVEN for name in names) and not clocks(every):
            return frozenset([Record()])
        last = [name.rpartition(".")[2] for name in names if name.startswith("ane_book")]
        return union(self.by_name(name, every, node) for name in last)

    def receiver(self, node: ast.Call, scope: Scope) -> Value | None:
        """The object of a method, or None for a function."""
        if not isinstance(node.func, ast.Attribute):
            return None
        value = self.value(node.func.value, scope)
        return None if any(isinstance(item, Imported) for item in value) else value

    def method(self, node: ast.Call, given: list, named: dict, scope: Scope) -> Value:
        """A method may return what its object holds, and its object may hold what it is given."""
        value = self.receiver(node, scope)
        if value is None:
            return NOTHING
        name, result = called(node), value - {v for v in value if isinstance(v, Function)}
        for function in self.methods.get(name, []):
            result |= self.call(function, [value, *given], named)
        if more := clocks(union([*given, *named.values()])):
            self.change(node.func.value, more, scope)
        elif self.decided and name in CHANGES:
            self.change(node.func.value, NOTHING, scope)
        if name in CHANGES:
            for held in set().union(*map(roots, node.args)):
                scope.holds(roots(node.func), held)
        return result | self.by_name(name, value, node)

    def call(self, function: Function, given: list[Value], named: dict[str, Value]) -> Value:
        """Read a function with these arguments; what it returns or yields."""
        node = function.node
        if node in self.active or len(self.active) >= DEEPEST:
            return NOTHING
        if isinstance(node, ast.ClassDef):
            made = [n for n in node.body if getattr(n, "name", "") == "__init__"]
            for init in made:
                self.call(Function(init, function.scope), [NOTHING, *given], named)
            return NOTHING
        scope = Scope(function.scope.file, function.scope)
        self.arguments(node.args, given, named, scope)
        key = function, self.decided, tuple(scope.names.items())
        if self.known.get(key, (None,))[0] != scope.state[0]:
            self.active.append(node)
            result = self.body(node, scope)
            self.active.pop()
            self.known[key] = scope.state[0], result  # while nothing that it may read changes
        return self.known[key][1]

    def body(self, node: ast.AST, scope: Scope) -> Value:
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope)
        self.returned.append(NOTHING)
        self.block(node.body, scope)
        return self.returned.pop()

    def arguments(self, spec: ast.arguments, given: list, named: dict, scope: Scope) -> None:
        """Bind parameters: as given, as defaults say, or as the fixture of this name does."""
        places = [*spec.posonlyargs, *spec.args]
        defaults = dict(zip([a.arg for a in places][::-1], spec.defaults[::-1], strict=False))
        alone = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        defaults |= {a.arg: default for a, default in alone if default is not None}
        for index, argument in enumerate([*places, *spec.kwonlyargs]):
            name = argument.arg
            if name in named:
                value = named[name]
            elif index < min(len(given), len(places)):
                value = given[index]
            elif name in defaults:
                value = self.value(defaults[name], scope.around)
            else:
                value = union([named.get(None, NOTHING), *self.fixture(name, scope)])
            scope.names[name] = value
        if spec.vararg:
            scope.names[spec.vararg.arg] = union(given)
        if spec.kwarg:
            words = (under(name, value) for name, value in named.items())
            scope.names[spec.kwarg.arg] = union(words)

    def fixture(self, name: str, scope: Scope) -> Iterator[Value]:
        for item in scope.around.find(name):
            marks = getattr(getattr(item, "node", None), "decorator_list", [])
            if any("fixture" in ast.dump(mark) for mark in marks):
                yield self.call(item, [], {})
