"""Who imports whom: mlprogram <- ane_book <- ane_serve <- ane_book_pages, in code and in tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLPROGRAM = "mlprogram/src/mlprogram"
ABOVE = ("ane_book", "ane_serve", "ane_book_pages")  # in their order; each knows those before it
PARTS = ("ane", "onnx", "coreai")  # of mlprogram, which know nothing of each other

#: Folders of tests, by what their suite installs besides mlprogram.
OF_PARTS = {f"tests/{part}": part for part in PARTS}
OF_PAGES = ("tests/book", "tests/project", "tests/research", "tests/elsewhere")


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, and what it imports of them, with dots."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def against(files: list[Path], *others: str) -> list[str]:
    """What files import of modules that they may not know."""
    assert files
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported(path)
        if any(f"{name}.".startswith(f"{other}.") for other in others)
    ]


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(
    "folder, others",
    [
        (MLPROGRAM, ABOVE),
        ("ane_book", ABOVE[1:]),
        ("ane_serve/src/ane_serve", ABOVE[2:]),
        *(
            (f"{MLPROGRAM}/{part}", [f"mlprogram.{x}" for x in PARTS if x != part])
            for part in PARTS
        ),
    ],
)
def test_a_package_knows_none_that_is_built_on_it(folder, others):
    assert against(sources(folder), *others) == []


@pytest.mark.parametrize(
    "folder, others",
    [
        ("tests/mlprogram", ABOVE),
        ("tests/serve", ABOVE[2:]),
        *((folder, ABOVE) for folder in OF_PARTS),
    ],
)
def test_a_suite_knows_its_own_distribution(folder, others):
    assert against(sources(folder), *others) == []


def test_of_the_tests_those_of_pages_know_the_pages():
    rest = [path for path in sources("tests") if not path.is_relative_to(ROOT / "tests/serve")]
    own = [path for path in rest if not any(path.is_relative_to(ROOT / f) for f in OF_PAGES)]
    assert against([path for path in own if path.parent != ROOT / "tests"], *ABOVE[1:]) == []
