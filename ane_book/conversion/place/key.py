"""What a bundle's bytes depend on besides weights and recipe, found out from the code itself.

Every module that conversion imports, and what those import in turn, is read from its source; so are
the names of the packages of others, whose versions count. Of a package only the modules named are
taken: that `mlprogram` loads the executor when its reader is imported changes no bundle.
"""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
import sys

__all__ = ["code_key", "modules"]

LIBRARY = Path(__file__).parents[2]
ROOT = "ane_book.conversion"


@cache
def code_key() -> str:
    """sha256 of the sources and versions that conversion rests on."""
    files, others = modules(LIBRARY)
    digest = sha256()
    for file in files:
        digest.update(f"{file.relative_to(LIBRARY).as_posix()}\n".encode() + file.read_bytes())
    for name in others:
        try:
            digest.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:  # of the standard library, or named otherwise than its package
            continue
    return digest.hexdigest()


def modules(library: Path) -> tuple[list[Path], list[str]]:
    """The sources of the library at this folder that conversion needs, and what else they import:
    names of modules at the top."""
    files, others, todo = set(), set(), [ROOT]
    while todo:
        name = todo.pop()
        top = name.partition(".")[0]
        if top != "ane_book":
            others.add(top)
            continue
        file = _source(library, name)
        if file and file not in files:
            files.add(file)
            todo += _imports(ast.parse(file.read_bytes()))
    return sorted(files), sorted(others - sys.stdlib_module_names)


def _source(library: Path, name: str) -> Path | None:
    """The file of a module of ours, or of the module that something of this name is in."""
    path = library.joinpath(*name.split(".")[1:])
    places = (path / "__init__.py", path.with_suffix(".py"), path.parent / "__init__.py",
              path.parent.with_suffix(".py"))  # fmt: skip
    return next((place for place in places if place.is_file()), None)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Names that a source imports, wherever in it, unless for the sake of types alone.

    Of `from a import b` it is a.b, whether that is a module or something in one.
    """
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):  # of a statement
            todo += getattr(node, part, [])
