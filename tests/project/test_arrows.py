"""Who imports whom: mlprogram <- ane_book <- ane_serve <- ane_book_pages, in code and in tests;
swift_tables and ane_families know mlprogram and ane_book, and no library knows them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from suites import SUITES

ROOT = Path(__file__).resolve().parents[2]
MLPROGRAM = "mlprogram/src/mlprogram"
#: In their order: each knows those before it, but nobody the pages or ane_families, and
#: swift_tables not ane_serve.
ABOVE = ("ane_book", "ane_serve", "ane_book_pages", "swift_tables", "ane_families")
PARTS = ("ane", "onnx", "coreai")  # of mlprogram, which know nothing of each other


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


def sources(place: str, names: str = "*.py") -> list[Path]:
    path = ROOT / place
    return [path] if path.is_file() else sorted(path.rglob(names))


TESTED = {
    suite: [path for place in places.split() for path in sources(f"tests/{place}")]
    for suite, (_, _, places) in SUITES.items()
}


@pytest.mark.parametrize(
    "folder, others",
    [
        (MLPROGRAM, ABOVE),
        ("ane_book", ABOVE[1:]),
        ("ane_serve/src/ane_serve", ABOVE[2:]),
        ("book/ane_book_pages", ABOVE[3:]),
        ("swift/tables/src/swift_tables", (*ABOVE[1:3], ABOVE[4])),
        ("families/src/ane_families", ABOVE[1:4]),
        *(
            (f"{MLPROGRAM}/{part}", [f"mlprogram.{x}" for x in PARTS if x != part])
            for part in PARTS
        ),
    ],
)
def test_a_package_knows_none_that_is_built_on_it(folder, others):
    assert against(sources(folder), *others) == []


#: The suites, from whose environment the packages that are named are absent.
ABSENT = dict.fromkeys(("executor", *PARTS), ABOVE) | {
    "ane_book": ABOVE[1:4], "serve": ABOVE[2:4], "swift": ABOVE[2:3]
}  # fmt: skip


@pytest.mark.parametrize("suite", ABSENT)
def test_a_suite_knows_its_own_distribution(suite):
    assert against(TESTED[suite], *ABSENT[suite]) == []


def test_a_file_of_tests_is_in_one_suite():
    found = [path for paths in TESTED.values() for path in paths if path.name.startswith("test_")]
    assert sorted(found) == sources("tests", "test_*.py")
