"""The Swift package's calls of Apple's frameworks, type-checked without them.

`swift/Stubs` declares what the package uses, each declaration under its page of Apple's
documentation; `swift/Stubs/README.md` lists them: `python tests/swift/test_stubs.py` writes it.
"""

import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import tempfile

import pytest

SWIFT = Path(__file__).parents[2] / "swift"
STUBS = SWIFT / "Stubs"
PAGE = re.compile(r"\s*// (documentation/\S+(?: \(.*\))?)$")
DECLARATION = re.compile(
    r"\s*(?:@\w+(?:\([^)]*\))? )*(?:(?:public|open|nonisolated|final|convenience|static|class) )*"
    r"((?:func|var|let|case|class|struct|enum|protocol|init|subscript|associatedtype|extension)\b.*)"
)
COMPILER = shlex.split(os.environ.get("ANE_BOOK_SWIFTC", "swiftc"))

needs_swift = pytest.mark.skipif(
    shutil.which(COMPILER[0]) is None, reason="no swiftc here, and ANE_BOOK_SWIFTC is not set"
)


def declarations(module: Path) -> list[tuple[str, str]]:
    """Each declaration of a module with its page; an empty page where none stands above it."""
    pairs, page = [], ""
    for line in module.read_text().splitlines():
        if match := PAGE.match(line):
            page = match[1]
        elif match := DECLARATION.match(line):
            text = re.sub(r"\s*\{.*", "", match[1])
            if not text.startswith("extension"):
                pairs.append((text, page))
            page = ""
    return pairs


def listing() -> str:
    """`swift/Stubs/README.md`."""
    lines = [
        "# What is declared here",
        "",
        "The declarations of Apple's frameworks that the package and the example use, for type "
        "checks on machines without them (`Stubs/check`). No product is built with them. Made from "
        "the comments in the files, by `python tests/swift/test_stubs.py`; a page is one of "
        "`developer.apple.com/`, marked where it was not at hand when this was written: then the "
        "declaration is from bindings generated from the headers, from quotations or from use.",
    ]
    for module in sorted(STUBS.glob("*.swift")):
        lines += ["", f"## {module.stem}", "", "| declaration | page |", "| --- | --- |"]
        lines += [f"| `{text}` | {page} |" for text, page in declarations(module)]
    return "\n".join(lines) + "\n"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `Stubs/check` of a copy of the package.

    What it makes lies in that copy, so that a compiler in another root may be told to see it.
    """
    (folder / "tmp").mkdir()
    return subprocess.run(
        [folder / "Stubs/check"],
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )


@pytest.fixture
def package():
    """A copy of the package beside it, without what was built."""
    with tempfile.TemporaryDirectory(dir=SWIFT, prefix=".build-") as folder:
        ignore = shutil.ignore_patterns(".build*", "AneBookTests")
        shutil.copytree(SWIFT, folder, ignore=ignore, dirs_exist_ok=True)
        yield Path(folder)


def test_every_declaration_names_its_page():
    for module in STUBS.glob("*.swift"):
        for declaration, page in declarations(module):
            assert page, f"{module.name}: {declaration}"


def test_the_list_is_that_of_the_files():
    assert (STUBS / "README.md").read_text() == listing()


@needs_swift
def test_the_package_and_the_example_pass(package):
    result = check(package)
    assert result.returncode == 0, result.stdout


@needs_swift
@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "member", "end"),
    [
        ("Sources/AneBook/Programs/CoreMLPredictor.swift", "options.outputBackings", " = "),
        ("Sources/AneBook/FoundationModels.swift", ".updateUsage", "("),
        ("Example/ChatApp.swift", ".beginBackgroundTask", "("),
    ],
)
def test_a_misspelt_call_is_an_error(package, file, member, end):
    source = package / file
    assert source.read_text().count(member + end) == 1
    source.write_text(source.read_text().replace(member + end, f"{member}x{end}"))
    result = check(package)
    assert result.returncode != 0
    assert f"no member '{member.partition('.')[2]}x'" in result.stdout


@needs_swift
@pytest.mark.long
def test_a_public_name_of_apples_is_an_error(package):
    names = ("Bundle", "Host", "Layout", "Prompt")
    source = package / "Sources/AneBook/Errors.swift"
    source.write_text(source.read_text() + "".join(f"public enum {name} {{}}\n" for name in names))
    result = check(package)
    assert result.returncode != 0
    for name in names:
        assert f"'{name}' is ambiguous for type lookup in this context" in result.stdout


if __name__ == "__main__":
    (STUBS / "README.md").write_text(listing())
