"""What the value of an expression comes from, calls included: half of the reading of `_clock`.

Functions of the file, and of the tests' own modules, are read where they are called. One that is
handed to another function may be called by it.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
import re

from _clock_values import (
    KEYS,
    NOTHING,
    Clock,
    Function,
    Imported,
    Mapping,
    Record,
    Scope,
    Value,
    below,
    clocks,
    counted,
    deciding,
    elements,
    loose,
    plain,
    somewhere,
    step,
    truth,
    under,
    union,
)

CLOCKS = re.compile(
    r"time\.(?:(?:perf_counter|process_time|monotonic|thread_time|time|clock_gettime)(?:_ns)?"
    r"|localtime|gmtime|ctime)"
    r"|timeit\.\w+|(?:\w+\.)+(?:now|utcnow|today)|os\.times|os\.path\.get[acm]time"
)
OF_A_TIME = {"time.localtime", "time.gmtime", "time.ctime"}  # now, if they are given none
RECORDS = re.compile(r"ane_book\.(?:book\.records|claims)\.\w+")
FOLDERS = {"research", "measurements"}  # of records
#: Names of times: by their ends in the library, and those of `os.stat` and of psutil.
ENDS = re.compile(
    r".*_(?:cold|warm|median|seconds|tps)|.*speed_to_.*"
    r"|st_[acm]time(?:_ns)?|ru_[us]time|cpu_times|cpu_percent|create_time"
)
#: Classes of the library that hold times which somebody gives them.
GIVEN = {"TimedAnswer", "Roofs"}
SIZES = {"len", "type", "isinstance", "hasattr", "callable"}
FAILS = {"fail", "exit", "_exit", "abort", "SystemExit"}
PUTS = {"append", "appendleft", "add", "insert", "put"}
OF_TEXTS = {"startswith", "endswith", "split", "splitlines", "strip", "replace"}
COPIES = {"copy", "deepcopy", "loads", "dumps"}
CHOOSES = {"filter", "where", "nonzero", "argwhere", "flatnonzero", "compress", "unique"}
FAKES = {"setattr", "patch", "object"}  # of monkeypatch and unittest.mock
MAGIC = "magic_of_ipython"  # stands for it in the code of a page
CHANGES = PUTS | {"extend", "update", "setdefault", "write", "remove", "discard", "pop", "clear"}
DEEPEST = 8  # call within call


def called(node: ast.AST) -> str:
    """The last part of the name that a call calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def gone_through(value: Value) -> Value:
    return counted(value) | under(None, elements(value))


def dictionary(value: Value) -> Value:
    """`dict(...)` of pairs or of another dictionary."""
    pairs = elements(value)
    if Mapping() in value:
        return value
    return under(KEYS, below(0, pairs)) | under(None, below(1, pairs)) | {Mapping()}


def numbered(value: Value) -> Value:
    number = counted(value)
    return number | under(None, under(0, number) | under(1, elements(value)))


#: What functions and methods with one argument or none make of what goes through them.
MADE: dict[str, Callable[[Value], Value]] = {
    **dict.fromkeys(("list", "tuple", "reversed", "sorted", "iter"), gone_through),
    **dict.fromkeys(("set", "frozenset"), lambda v: gone_through(v) | deciding(elements(v))),
    "dict": dictionary,
    "enumerate": numbered,
    "next": elements,
    "keys": lambda v: counted(v) | under(None, below(KEYS, v)),
    "values": lambda v: counted(v) | under(None, below(None, v)),
    "items": lambda v: counted(v) | under(
        None, under(0, counted(v) | below(KEYS, v)) | under(1, below(None, v))),
}  # fmt: skip


@cache
def yields(function: ast.AST) -> list[ast.Yield]:
    """Where it yields what has a name."""
    found = [part for part in ast.walk(function) if isinstance(part, ast.Yield)]
    return [part for part in found if isinstance(part.value, ast.Name)]


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
        self.faked: frozenset[str] = frozenset()  # clocks that the test has set itself
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
        """Any of its parts: a sum, a comparison chain."""
        return loose(union(self.value(part, scope) for part in ast.iter_child_nodes(node)))

    def of_Tuple(self, node: ast.Tuple, scope: Scope) -> Value:
        if any(isinstance(part, ast.Starred) for part in node.elts):
            return self.of_List(node, scope)
        return union(under(i, self.value(part, scope)) for i, part in enumerate(node.elts))

    def of_List(self, node: ast.List | ast.Set | ast.Tuple, scope: Scope) -> Value:
        value = union(under(None, self.value(part, scope)) for part in node.elts)
        return value | deciding(value) if isinstance(node, ast.Set) else value

    of_Set = of_List

    def of_Starred(self, node: ast.Starred, scope: Scope) -> Value:
        return elements(self.value(node.value, scope))

    def of_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        """How long the text is depends on the number too."""
        return deciding(self.parts(node, scope))

    def of_IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        by = deciding(truth(self.value(node.test, scope)))
        return by | self.given(by, [node.body, node.orelse], scope)

    def of_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        """What comes after `and` or `or` is asked only if what is before it says so."""
        value = self.value(node.values[0], scope)
        for part in node.values[1:]:
            value |= self.given(deciding(truth(value)), [part], scope)
        return value

    def given(self, by: Value, parts: list[ast.expr], scope: Scope) -> Value:
        """Any of the parts, that are read only if `by` says so."""
        before, self.decided = self.decided, self.decided | by
        value = union(self.value(part, scope) for part in parts)
        self.decided = before
        return value

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
        while scope.comprehension:
            scope = scope.around
        self.assign(node.target, value, scope)
        return value

    def of_Compare(self, node: ast.Compare, scope: Scope) -> Value:
        """That something was timed, or under which name, is not how long it took."""
        if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return NOTHING
        if all(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            left, *right = (self.value(part, scope) for part in (node.left, *node.comparators))
            return clocks(left) | counted(union(right))
        every = clocks(self.parts(node, scope))
        if any(isinstance(part, ast.Constant) for part in (node.left, *node.comparators)):
            every = plain(every)
        return frozenset(replace(item, path=()) for item in every)

    def of_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        if modules := [item.name for item in value if isinstance(item, Imported)]:
            return union(self.member(module, node.attr) for module in modules)
        if node.attr in ("shape", "size", "ndim", "dtype"):
            return counted(value)
        value = below(node.attr, value - {item for item in value if isinstance(item, Function)})
        value |= self.attributes.get(node.attr, NOTHING)
        for method in self.methods.get(node.attr, []):
            if any("property" in ast.dump(d) for d in getattr(method.node, "decorator_list", [])):
                value |= self.call(method, [value], {})
        return value | self.by_name(node.attr, value, node)

    def member(self, module: str, name: str) -> Value:
        """What a module has under a name."""
        own = self.module(module)
        if own is not None and name in own.names:
            return own.names[name]
        return frozenset([Imported(f"{module}.{name}")])

    def by_name(self, name: str, value: Value, node: ast.AST) -> Value:
        """The library's times go by their names; in a record they are history."""
        timed = name in self.timed or ENDS.fullmatch(name)
        if not timed or Record() in value or self.faked:
            return NOTHING
        return frozenset([Clock(node.lineno, name)])

    def of_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value, key = self.value(node.value, scope), step(node.slice)
        if isinstance(node.slice, ast.Slice):
            return loose(value) | deciding(self.value(node.slice, scope))
        if isinstance(key, str):
            return below(key, value) | self.by_name(key, value, node)
        return below(key, value) | deciding(self.value(node.slice, scope))

    def of_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        """Which clock is under which key, where keys are written out."""
        found = frozenset([Mapping()])
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part, scope)
            found |= under(step(key), value) if key else value
            found |= under(KEYS, clocks(self.value(key, scope))) if key else NOTHING
        return found

    def of_ListComp(self, node: ast.ListComp, scope: Scope) -> Value:
        inner, number = Scope(scope.file, scope), NOTHING
        inner.comprehension = True
        for loop in node.generators:
            self.each(loop.target, loop.iter, inner)
            number |= counted(self.value(loop.iter, inner))
            for test in loop.ifs:
                number |= clocks(self.value(test, inner))
        if isinstance(node, ast.DictComp):
            keys, values = self.value(node.key, inner), self.value(node.value, inner)
            made = under(KEYS, clocks(keys)) | under(None, values) | {Mapping()}
        else:
            made = under(None, self.value(node.elt, inner))
        number |= clocks(made) if isinstance(node, ast.SetComp) else NOTHING
        return made | deciding(number)

    of_SetComp = of_GeneratorExp = of_DictComp = of_ListComp

    def of_Yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> Value:
        value = self.value(node.value, scope) if node.value else NOTHING
        if self.returned:
            whole = value if isinstance(node, ast.YieldFrom) else under(None, value)
            self.returned[-1] |= whole | self.decided
        return NOTHING

    of_YieldFrom = of_Yield

    def of_Call(self, node: ast.Call, scope: Scope) -> Value:
        function, name = self.value(node.func, scope), called(node)
        given = [self.value(argument, scope) for argument in node.args]
        named = {word.arg: self.value(word.value, scope) for word in node.keywords}
        every = union([*given, *named.values()])
        names = {name} | {v.name.rpartition(".")[2] for v in function if isinstance(v, Imported)}
        if name.startswith("assert") or names & FAILS:
            self.judge_call(node, every | clocks(function) | self.decided, scope)
        handlers = [item for item in function if isinstance(item, Function)]
        if not function and scope.owner(name):  # perhaps an object
            handlers = self.methods.get("__call__", [])
        held = self.receiver(node, scope)
        if handlers:
            result = union(self.call(handler, given, named) for handler in handlers)
        else:
            made = self.by_words(node, given, scope)
            made = self.made(name, held, given, named) if made is None else made
            if made is not None:
                return made
            moved = loose(every) if name in COPIES else somewhere(every)
            moved |= deciding(every) if name in CHOOSES else NOTHING
            records = {item for item in every if isinstance(item, Record)}
            result = clocks(moved) | records | self.handed_over(every)
        result |= self.imported(node, function, every) | clocks(function)
        result |= {
            Clock(node.lineno, item.name)
            for item in every if isinstance(item, Imported) and self.is_clock(item.name)
        }  # fmt: skip
        return result | self.method(node, held, given, named, scope)

    def handed_over(self, every: Value) -> Value:
        """What functions return that somebody else is given: they may be called there."""
        return union(self.call(item, [], {}) for item in every if isinstance(item, Function))

    def by_words(self, node: ast.Call, given: list[Value], scope: Scope) -> Value | None:
        """What is named by words: a module, an attribute, a line of IPython. None for others."""
        name, (first, second) = called(node), [*map(step, node.args[:2]), None, None][:2]
        if name in FAKES:
            self.fake(node, given)
        if name == MAGIC:
            return frozenset([Clock(node.lineno, first)] if re.search("time|date", first) else ())
        if name in ("__import__", "import_module") and isinstance(first, str):
            return frozenset([Imported(first)])
        if name in ("getattr", "setattr") and isinstance(second, str):
            attribute = ast.copy_location(ast.Attribute(node.args[0], second), node)
            if name == "getattr":
                return self.of_Attribute(attribute, scope) | union(given[2:])
            if isinstance(node.func, ast.Name):
                self.change(attribute, given[2], scope)
        return None

    def made(self, name: str, held: Value | None, given: list, named: dict) -> Value | None:
        """What functions that Python has itself return. None for others."""
        if name in ("str", "repr", "format"):
            return deciding(plain(union([*given, *named.values(), held or NOTHING])))
        if name in SIZES:
            return counted(union([*given, held or NOTHING]))
        if name == "zip" and given:
            parts = (under(i, elements(value)) for i, value in enumerate(given))
            return union([under(None, union(parts)), *map(counted, given)])
        through = [held] if name in ("keys", "values", "items") and held is not None else given
        if name in MADE and len(through) == 1 and not named:
            return MADE[name](through[0])
        return None

    def fake(self, node: ast.Call, given: list[Value]) -> None:
        """A test that sets the clock itself: it tells what it likes from here on."""
        words = [part.value for part in node.args if isinstance(part, ast.Constant)]
        modules = [v.name for v in (given or [NOTHING])[0] if isinstance(v, Imported)]
        for name in [f"{module}.{word}" for module in modules or [""] for word in words]:
            short = ".".join(name.split(".")[-2:])
            if CLOCKS.fullmatch(short):
                self.faked |= {short}

    def is_clock(self, name: str) -> bool:
        return bool(CLOCKS.fullmatch(name)) and name not in self.faked

    def judge_call(self, node: ast.Call, every: Value, scope: Scope) -> None:
        if clocks(every):
            self.judge(node, every, scope)

    def imported(self, node: ast.Call, function: Value, every: Value) -> Value:
        """What a function of another module returns, as far as its name says."""
        names = [item.name for item in function if isinstance(item, Imported)]
        if any(map(self.is_clock, names)) and not (node.args and set(names) & OF_A_TIME):
            return frozenset(Clock(node.lineno, name) for name in names)
        if any(RECORDS.match(name) for name in names):
            return frozenset([Record()])
        if any(name.rpartition(".")[2] in GIVEN for name in names) and not clocks(every):
            return frozenset([Record()])
        last = [
            name.rpartition(".")[2] for name in names if name.startswith(("ane_book", "mlprogram"))
        ]
        return union(self.by_name(name, every, node) for name in last)

    def receiver(self, node: ast.Call, scope: Scope) -> Value | None:
        """The object of a method, or None for a function."""
        if not isinstance(node.func, ast.Attribute):
            return None
        value = self.value(node.func.value, scope)
        return None if any(isinstance(item, Imported) for item in value) else value

    def method(
        self, node: ast.Call, value: Value | None, given: list, named: dict, scope: Scope
    ) -> Value:
        """A method may return what its object holds, and its object may hold what it is given."""
        if value is None:
            return NOTHING
        name, result = called(node), value - {v for v in value if isinstance(v, Function)}
        result = plain(result) if name in OF_TEXTS else result
        if name not in COPIES | CHANGES | {"get"}:
            result = result - clocks(result) | somewhere(result)
        if name in ("get", "pop", "setdefault") and node.args:
            result = below(step(node.args[0]), result)
        if name == "time" and not given and not self.faked:  # of an event loop
            result |= {Clock(node.lineno, name)}
        for function in self.methods.get(name, []):
            result |= self.call(function, [value, *given], named)
        if more := clocks(union([*given, *named.values()])):
            self.change(node.func.value, under(None, more) if name in PUTS else more, scope)
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
            return self.instance(node, function, given, named)
        scope = Scope(function.scope.file, function.scope)
        self.arguments(node.args, given, named, scope)
        key = function, self.decided, self.faked, tuple(scope.names.items())
        if self.known.get(key, [None])[0] != scope.state[0]:
            self.active.append(node)
            result = self.body(node, scope)
            self.active.pop()
            # while nothing that it may read changes
            self.known[key] = scope.state[0], result, self.faked
        _, result, self.faked = self.known[key]
        return result

    def body(self, node: ast.AST, scope: Scope) -> Value:
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope)
        self.returned.append(NOTHING)
        self.block(node.body, scope)
        for part in yields(node):  # what was yielded may hold more since
            self.value(part, scope)
        return self.returned.pop()

    def instance(self, node: ast.ClassDef, function: Function, given: list, named: dict) -> Value:
        """An object; its fields are under their names where no `__init__` sets them."""
        made = [n for n in node.body if getattr(n, "name", "") == "__init__"]
        for init in made:
            self.call(Function(init, function.scope), [NOTHING, *given], named)
        fields = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign)]
        places = dict(zip(fields, given, strict=False)) | named
        if made or len(places) < len(given) + len(named):
            every = clocks(union([*given, *named.values()]))
            return under("what it is made of", every) if made else every
        found = ((name, clocks(value)) for name, value in places.items())
        steps = {name: {name, fields.index(name) if name in fields else name} for name in places}
        return union(under(one, value) for name, value in found for one in steps[name])

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
        shared = self.module("conftest")
        for item in scope.around.find(name) or (shared.find(name) if shared else NOTHING):
            marks = getattr(getattr(item, "node", None), "decorator_list", [])
            if any("fixture" in ast.dump(mark) for mark in marks):
                yield self.call(item, [], {})
