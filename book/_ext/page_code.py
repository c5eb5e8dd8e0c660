"""A page's code as its notebook has it: without what serves only the book's build and its checks.

`glue` hands the build numbers for sentences, and cells tagged `remove-cell` mostly assert what the
sentences state. Of those cells a notebook keeps what a later cell uses, and what has an effect of
its own. Imports that served only what went go too.
"""

import ast
from collections.abc import Iterator
import symtable

DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
IMPORTS = (ast.Import, ast.ImportFrom)


def parts(node: ast.stmt) -> list[ast.stmt]:
    """The statements in a block."""
    found = [*getattr(node, "body", []), *getattr(node, "orelse", [])]
    return [] if isinstance(node, DEFINITIONS) else found


def is_glue(node: ast.stmt) -> bool:
    """Whether it hands the build a number, or imports what does; or a block of nothing else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) in ("glue", "records.live")
    if isinstance(node, ast.ImportFrom):
        return node.module == "myst_nb"
    return bool(parts(node)) and all(map(is_glue, parts(node)))


def has_effect(node: ast.stmt) -> bool:
    """Whether it may do more than check, and give names their values."""
    if isinstance(node, ast.With) and "raises(" in ast.unparse(node.items[0]):
        return False
    if inside := parts(node):
        return any(map(has_effect, inside))
    if isinstance(node, ast.Assign) and ast.unparse(node.value) == "None":  # gives memory back
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        within = (one for target in targets for one in ast.walk(target))
        return any(isinstance(one, ast.Attribute | ast.Subscript) for one in within)
    return not (isinstance(node, (ast.Assert, *IMPORTS, *DEFINITIONS)) or is_glue(node))


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A scope and those in it."""
    yield table
    for child in table.get_children():
        yield from tables(child)


def read_when_called(node: ast.AST) -> set[str]:
    """Names of the page that functions look up: when they are called, so maybe in a later cell."""
    _, *inner = tables(symtable.symtable(ast.unparse(node), "cell", "exec"))
    return {name.get_name() for each in inner for name in each.get_symbols() if name.is_global()}


def names(node: ast.AST) -> tuple[set[str], set[str]]:
    """Names that a statement gives values, and those whose values it needs."""
    symbols = symtable.symtable(ast.unparse(node), "cell", "exec").get_symbols()
    given = {name.get_name() for name in symbols if name.is_assigned() or name.is_imported()}
    read = {name.get_name() for name in symbols if name.is_referenced()}
    return given, read | read_when_called(node)


class Code:
    """One cell's code, and which of its lines go."""

    def __init__(self, source: str, hidden: bool):
        self.hidden, self._lines = hidden, source.splitlines()
        self.tree = ast.parse("" if source.startswith(("%", "!")) else source)
        self._gone: set[int] = set()  # numbers of lines, from 1

    def trim(self, later: set[str], always: set[str], read: set[str]) -> None:
        """Drop what nobody needs, from the end on, and change `later`: the names read after it.

        always: names that are kept wherever they are bound. read: those that the page reads at all.
        """
        for node in reversed(self.tree.body):
            given, needed = names(node)
            if isinstance(node, IMPORTS):
                self._trim_import(node, given - (read - later - always))
            elif self.hidden and not has_effect(node) and not given & (later | always):
                self._drop(node)
                continue
            for one in ast.walk(node):
                if isinstance(one, ast.stmt) and is_glue(one):
                    self._drop(one)
            if isinstance(node, (ast.Assign, *IMPORTS, *DEFINITIONS)):
                later -= given
            if node.lineno not in self._gone:
                later |= needed

    def _trim_import(self, node: ast.Import | ast.ImportFrom, kept: set[str]) -> None:
        left = [n for n in node.names if (n.asname or n.name.partition(".")[0]) in kept]
        if len(left) == len(node.names):
            return
        self._drop(node)
        if left:
            node.names = left
            self._gone.remove(node.lineno)
            self._lines[node.lineno - 1] = ast.unparse(node)

    def _drop(self, node: ast.stmt) -> None:
        """With the decorators of it and the comment above it."""
        first = min(one.lineno for one in [node, *getattr(node, "decorator_list", [])])
        while first > 1 and self._lines[first - 2].lstrip().startswith("#"):
            first -= 1
        self._gone |= {*range(first, node.end_lineno + 1)}

    def left(self) -> str:
        """What is left, without the blank lines around what went."""
        lines, after_gap = [], False
        for number, line in enumerate(self._lines, 1):
            if number in self._gone:
                after_gap, blank = True, len(lines) - len("\n".join(lines).rstrip().split("\n"))
            elif after_gap and not line.strip() and (blank > 0 or not lines):
                blank -= 1
            else:
                after_gap = after_gap and not line.strip()
                lines.append(line)
        return "\n".join(lines).strip("\n")


def for_readers(cells: list[tuple[str, bool]]) -> list[str]:
    """The code of a page's cells without what readers need not have; "" where nothing is left.

    cells: the code of each, and whether the page leaves the cell out.
    """
    sources = [source for source, _ in cells]
    read = set().union(*(names(Code(*cell).tree)[1] for cell in cells))
    while True:
        codes = [Code(source, hidden) for source, (_, hidden) in zip(sources, cells, strict=True)]
        trees = [code.tree for code in codes]
        always = set().union(*map(read_when_called, trees))
        later: set[str] = set()
        for code in reversed(codes):
            code.trim(later, always, read)
        before, sources = sources, [code.left() for code in codes]
        if sources == before:
            return sources
