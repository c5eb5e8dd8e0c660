"""Where a verdict is taken from a clock: a file's syntax tree, read as Python would run it.

A value is only the set of what it comes from (`_clock_values`). It goes through assignments,
containers, comprehensions, attributes, f-strings and calls (`_clock_expressions`). What happens
only if a clock says so, in an `if` or a loop, comes from the clock as well.

`verdicts` finds where such a value decides whether the file fails: an `assert`, a call of
`assert_...`, and an `if` around a `raise`, a `fail` or an `exit`.

It does not see what a process prints of its seconds, nor what a file on the disk says. Left out as
well: `eval`, `exec` and `globals()`, limits (`timeout=`, `join(1)`), timers of threads, operators
that a class defines, and errors that a time makes of itself, such as `1 / (took < 1)`. A test that
sets any clock is taken at its word for the library's times.
"""

import ast
from importlib import import_module
from pathlib import Path
import re

from _clock_expressions import MAGIC, Expressions, Verdict, called, names_of, roots
from _clock_values import (
    KEYS,
    NOTHING,
    Function,
    Imported,
    Record,
    Scope,
    Value,
    below,
    clocks,
    deciding,
    elements,
    step,
    truth,
    under,
    union,
)

#: The one module that may fail by a clock: it guards against hanging.
GUARDS = "_patience"
#: What comes from a clock: attributes, keys and functions of the library, which a test derives from
#: its source, and the first two of packages that tests use.
TIMED = frozenset(
    [
        *("elapsed", "elapsed_time", "seconds", "elapsed_s", "total_s", "first_s", "queue_s"),
        *("cold_s", "warm_s", "cold_start_s", "cold_start", "timed", "first_ms", "latency_ms"),
        *("latency", "prefill_tps", "decode_tps", "decode_tps_min_median_max", "ratios"),
        *("bandwidth_bytes_s", "flops_s", "ridge", "reads", "computes"),
        *("since", "spread"),
    ]
)


#: Modules with clocks, of which `import *` is understood.
WITH_CLOCKS = {"time", "timeit", "datetime", "os", "resource"}


def is_return(node: ast.AST) -> bool:
    return isinstance(node, ast.Return)


class Reader(Expressions):
    """Reads one file, and the modules of `folders` that it imports."""

    def __init__(self, folders: tuple[Path, ...] = (), timed: frozenset[str] = TIMED):
        super().__init__(timed)
        self.folders = folders
        self.modules: dict[str, Scope | None] = {}

    def read(self, tree: ast.Module, file: str) -> Scope:
        """The module's statements, then each of its functions as anybody might call it."""
        scope = Scope(file)
        self.block(tree.body, scope)
        for name in list(scope.names):
            for item in scope.names[name]:
                if isinstance(item, Function) and item.scope is scope:
                    self.faked = frozenset()
                    self.call(item, [], {})
        for _ in range(2):  # what the last sets in its object, the first may use
            for function in [f for found in self.methods.values() for f in found]:
                if function.scope.file == file:
                    self.faked = frozenset()
                    self.call(function, [], {})
        return scope

    def module(self, name: str) -> Scope | None:
        """A module of the tests: its names. None for any other."""
        if name not in self.modules:
            found = [p for f in self.folders if (p := f / f"{name.replace('.', '/')}.py").exists()]
            if not found or name == GUARDS:
                self.modules[name] = None
            else:
                self.modules[name] = Scope(found[0].name)  # also while it is read, in a circle
                body = ast.parse(found[0].read_text("utf-8")).body
                imported = [part for part in body if "__name__" not in ast.dump(part)[:80]]
                self.block(imported, self.modules[name])
        return self.modules[name]

    # Statements

    def block(self, body: list[ast.stmt], scope: Scope, by: Value = NOTHING) -> None:
        before, self.decided = self.decided, self.decided | deciding(by)
        for statement in body:
            handler = getattr(self, f"do_{type(statement).__name__}", self.do_other)
            handler(statement, scope)
            if isinstance(statement, ast.If) and any(map(is_return, ast.walk(statement))):
                self.decided |= deciding(truth(self.value(statement.test, scope)))
        self.decided = before

    def branch(self, body: list[ast.stmt], scope: Scope, by: Value = NOTHING) -> None:
        """What may be run, or not."""
        before = dict(scope.names)
        self.block(body, scope, by)
        scope.join(before)

    def do_other(self, node: ast.stmt, scope: Scope) -> None:
        """A statement of expressions alone, such as a call or a `raise`."""
        self.parts(node, scope)

    def do_Assert(self, node: ast.Assert, scope: Scope) -> None:
        self.judge(node, truth(self.value(node.test, scope)), scope)

    def do_Assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            self.bind(target, node.value, scope)

    def do_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, node.value, scope)

    def do_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        self.change(node.target, self.value(node.value, scope), scope)

    def do_Raise(self, node: ast.Raise, scope: Scope) -> None:
        self.parts(node, scope)
        self.judge(node, NOTHING, scope)

    def bind(self, target: ast.expr, source: ast.expr, scope: Scope) -> None:
        """Assign; a tuple to a tuple, one by one."""
        pairs = (ast.Tuple, ast.List)
        if (
            isinstance(target, pairs)
            and isinstance(source, pairs)
            and len(target.elts) == len(source.elts)
        ):
            values = [self.value(part, scope) for part in source.elts]
            for part, value in zip(target.elts, values, strict=True):
                self.assign(part, value, scope)
        else:
            self.assign(target, self.value(source, scope), scope)
            self.hold(target, source, scope)

    def hold(self, target: ast.expr, source: ast.expr, scope: Scope) -> None:
        """The names in a target and in what is assigned may be of one object."""
        for name in names_of(target):
            scope.holds(roots(source), name)
        for name in roots(source):
            scope.holds(names_of(target), name)

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        value |= self.decided
        if isinstance(target, ast.Name):
            scope.set(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            starred = any(isinstance(part, ast.Starred) for part in target.elts)
            for place, part in enumerate(target.elts):
                self.assign(part, below(None if starred else place, value), scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, under(None, value), scope)
        else:
            self.change(target, value, scope)

    def change(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """An object now holds this value too: the one of a name, or of any attribute so called."""
        value |= self.decided
        if isinstance(target, ast.Name):
            if not any(isinstance(item, Imported) for item in scope.find(target.id)):
                scope.add(target.id, value)
        elif isinstance(target, ast.Attribute):
            before = self.attributes.get(target.attr, NOTHING)
            self.attributes[target.attr] = before | value
            scope.state[0] += not value <= before
        elif isinstance(target, ast.Subscript):
            keys = under(KEYS, clocks(self.value(target.slice, scope)))
            self.change(target.value, under(step(target.slice), value) | keys, scope)
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            self.change(target.func.value, value, scope)

    def do_If(self, node: ast.If, scope: Scope) -> None:
        test = truth(self.value(node.test, scope))
        before = dict(scope.names)
        self.block(node.body, scope, test)
        scope.names, after = before, scope.names
        self.block(node.orelse, scope, test)
        scope.join(after)

    def do_Match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
                    scope.add(part.name, subject)
            self.branch(case.body, scope, subject)

    def do_While(self, node: ast.While, scope: Scope) -> None:
        for _ in range(2):  # what the end of the body assigns, its beginning may use
            by = truth(self.value(node.test, scope)) | self.leaving(node, scope)
            self.branch(node.body, scope, by)
        self.branch(node.orelse, scope, by)

    def do_For(self, node: ast.For, scope: Scope) -> None:
        before, by = self.decided, NOTHING
        for _ in range(2):
            self.decided = before | deciding(by)
            self.each(node.target, node.iter, scope)
            self.decided = before
            self.branch(node.body, scope, by)
            by = self.leaving(node, scope)
        self.branch(node.orelse, scope, by)

    do_AsyncFor = do_For

    def leaving(self, node: ast.For | ast.While, scope: Scope) -> Value:
        """What decides when a loop is left, besides its own condition."""
        ends = (ast.Break, ast.Continue, ast.Return)
        tests = [
            inner.test for inner in ast.walk(node)
            if isinstance(inner, ast.If) and any(isinstance(x, ends) for x in ast.walk(inner))
        ]  # fmt: skip
        return truth(union(self.value(test, scope) for test in tests))

    def each(self, target: ast.expr, source: ast.expr, scope: Scope) -> None:
        """Bind the target of a loop to any of the values that it goes through."""
        self.assign(target, elements(self.value(source, scope)), scope)
        name, pairs = called(source), [(target, source)]
        if isinstance(target, ast.Tuple) and name == "zip":
            pairs = [*zip(target.elts, source.args, strict=False)]
        elif isinstance(target, ast.Tuple) and name in ("items", "enumerate"):
            pairs = [(target.elts[-1], source)]
        for part, container in pairs:
            self.hold(part, container, scope)

    def do_With(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            for function in self.methods.get("__enter__", []):
                value |= self.call(function, [value], {})
            if item.optional_vars is not None:
                whole = NOTHING if isinstance(item.optional_vars, ast.Tuple) else value
                self.assign(item.optional_vars, whole | elements(value), scope)
        self.block(node.body, scope)
        for function in self.methods.get("__exit__", []):
            self.call(function, [], {})

    do_AsyncWith = do_With

    def do_Try(self, node: ast.Try, scope: Scope) -> None:
        self.block(node.body, scope)
        for handler in node.handlers:
            self.branch(handler.body, scope)
        self.branch(node.orelse, scope)
        self.block(node.finalbody, scope)

    def do_Return(self, node: ast.Return, scope: Scope) -> None:
        value = self.value(node.value, scope) if node.value else NOTHING
        if self.returned:
            self.returned[-1] |= value | self.decided

    def do_Global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.outer.update(node.names)

    do_Nonlocal = do_Global

    def do_FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.has_functions = True
        value = frozenset([Function(node, scope)])
        for mark in reversed(node.decorator_list):
            for item in self.value(mark, scope):
                value |= self.call(item, [value], {}) if isinstance(item, Function) else NOTHING
        scope.set(node.name, value)

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        own = Scope(scope.file, scope)
        self.block(node.body, own)
        for name, value in own.names.items():
            functions = [Function(f.node, scope) for f in value if isinstance(f, Function)]
            self.methods.setdefault(name, []).extend(functions)
            if clocks(value) or any(isinstance(item, Record) for item in value):
                self.change(ast.Attribute(ast.Name(name), name), value, scope)
        scope.names[node.name] = frozenset([Function(node, scope)])

    def do_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.names[alias.asname or name] = frozenset([Imported(name)])

    def do_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = self.module(node.module or "")
        for alias in node.names:
            if alias.name == "*" and module is not None:
                scope.names |= module.names
            elif alias.name == "*" and node.module in WITH_CLOCKS:
                for name in vars(import_module(node.module)):
                    scope.names[name] = frozenset([Imported(f"{node.module}.{name}")])
            else:
                value = (
                    self.member(node.module, alias.name)
                    if node.module
                    else frozenset([Imported(alias.name)])
                )
                scope.names[alias.asname or alias.name] = value


#: A cell of code on a page, with the options that stand before its code.
CELL = re.compile(
    r"^```\{code-cell\}.*\n((?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)((?:.*\n)*?)```$", re.M
)


#: What IPython runs in a cell, and what gets its result.
OF_IPYTHON = re.compile(r"^(\s*(?:[\w, ]+=)?\s*)([%!].*|[\w.]+\?+)$")


def in_python(cell: str) -> str:
    """A cell's code in Python alone. Of `%time f()` remains `f()`."""
    try:
        ast.parse(cell)
        return cell
    except SyntaxError:
        lines = re.sub(r"^(\s*)%time (?!it)", r"\1", cell, flags=re.M).split("\n")
    if any(
        line.startswith("%%") and not line.startswith(("%%time", "%%capture")) for line in lines
    ):
        return re.sub("^", "# ", cell, flags=re.M)  # of another language
    found = map(OF_IPYTHON.fullmatch, lines)
    return "\n".join(
        f"{m[1]}{MAGIC}({m[2]!r})" if m else line for line, m in zip(lines, found, strict=True)
    )


def code_of(page: str) -> str:
    """The code of a page's cells, each line where it stands in the page."""
    lines = [""] * (page.count("\n") + 1)
    for cell in CELL.finditer(page):
        first = page.count("\n", 0, cell.start(2))
        code = in_python(cell[2]).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def verdicts(path: Path, timed: frozenset[str] = TIMED) -> list[Verdict]:
    """Where a page (.md) or a test may fail by a clock, in the order of lines."""
    text = path.read_text(encoding="utf-8")
    page = path.suffix == ".md"
    tests = Path(__file__).parents[1]
    reader = Reader(() if page else (path.parent, tests, *tests.glob("**/")), timed)
    reader.read(ast.parse(code_of(text) if page else text), path.name)
    return sorted(v for v in reader.verdicts if v.file == path.name)
