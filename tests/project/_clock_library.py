"""What of the library comes from a clock, by the names under which others see it.

Each file is read by itself (`_clock`). A name is found where a clock reaches a function's result,
an attribute, a field of a class or a key of a dictionary. What a class holds stays in its fields:
an object is no time because one of them is.
"""

import ast
from pathlib import Path

from _clock import TIMED, Reader
from _clock_expressions import ENDS, called
from _clock_values import NOTHING, Function, Scope, Value, clocks, step, under

ROOT = Path(__file__).parents[2]
LIBRARIES = (ROOT / "ane_book", ROOT / "mlprogram" / "src" / "mlprogram")


class Library(Reader):
    """fields: of every class of the library, in the order of its arguments."""

    def __init__(self, fields: dict[str, list[str]]):
        super().__init__()
        self.fields, self.found = fields, {}

    def note(self, name: object, value: Value, where: str) -> None:
        if isinstance(name, str) and clocks(value):
            self.found.setdefault(name, where)

    def of_Call(self, node: ast.Call, scope: Scope) -> Value:
        """An object of one of the library's classes notes its fields."""
        if (name := called(node)) not in (*self.fields, "replace", "cls"):
            return super().of_Call(node, scope)
        given = [*zip(self.fields.get(name, []), node.args, strict=False)]
        for field, argument in given + [(word.arg, word.value) for word in node.keywords]:
            self.note(field, self.value(argument, scope), f"{scope.file}:{node.lineno}")
        return NOTHING

    def of_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        found = NOTHING
        for key, part in zip(node.keys, node.values, strict=True):
            value, name = self.value(part, scope), step(key)
            self.note(name, value, f"{scope.file}:{node.lineno}")
            found |= under(name, value)
        return found

    def change(self, target: ast.expr, value: Value, scope: Scope) -> None:
        where = f"{scope.file}:{getattr(target, 'lineno', 'class')}"
        if isinstance(target, ast.Subscript):
            self.note(step(target.slice), value | self.decided, where)
        elif isinstance(target, ast.Attribute):
            self.note(target.attr, value | self.decided, where)
        super().change(target, value, scope)

    def call(self, function: Function, given: list[Value], named: dict[str, Value]) -> Value:
        result = super().call(function, given, named)
        name, where = getattr(function.node, "name", None), function.scope.file
        self.note(name, result, f"{where}:{function.node.lineno}")
        return result


def reached() -> dict[str, str]:
    """Public names that a clock reaches and `TIMED` does not have, with one place of each."""
    paths = sorted(path for library in LIBRARIES for path in library.rglob("*.py"))
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    classes = [c for tree in trees.values() for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    fields = {
        c.name: [s.target.id for s in c.body if isinstance(s, ast.AnnAssign)] for c in classes
    }
    found: dict[str, str] = {}
    for path, tree in trees.items():
        library = Library(fields)
        library.read(tree, str(path.relative_to(ROOT)))
        found |= library.found
    return {
        name: where for name, where in sorted(found.items())
        if not name.startswith("_") and name not in TIMED and not ENDS.fullmatch(name)
    }  # fmt: skip
