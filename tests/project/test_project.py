"""What the README promises, what the pins cover, and the limits that keep the code readable."""

import ast
from collections.abc import Iterator
from functools import cache
import importlib.metadata
from importlib.util import find_spec
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tomllib

from _command import ane_book, mlprogram
from ane_book.bundle.manifest import FORMAT
from ane_book.options import Recipe, RecipeOptions, Sampling, SamplingOptions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = [
    tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    for name in ("mlprogram", "ane_serve", "families", "swift/tables")
]
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
FOLDERS = (
    "ane_book", "families", "mlprogram", "benchmarks", "book/_ext", "research/measurements",
    "swift/tables",
)  # fmt: skip
SOURCES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
MAX_FILE, MAX_FUNCTION = 400, 60  # lines; most are far shorter, and what nears them is looked at

#: What may be committed besides text, and how large any of it may be, in bytes.
MAX_TEXT = 300_000
MAX_BYTES = {".png": 1_000_000, ".safetensors": 10_000_000}  # weights that a script here trained

#: Where the packages lie, and their floors: a room imports from lower floors and itself, never
#: sideways or up.
LIBRARIES = {
    "mlprogram": ROOT / "mlprogram" / "src" / "mlprogram",
    "ane_book": ROOT / "ane_book",
    "ane_families": ROOT / "families" / "src" / "ane_families",
    "ane_serve": ROOT / "ane_serve" / "src" / "ane_serve",
    "swift_tables": ROOT / "swift" / "tables" / "src" / "swift_tables",
}
FLOORS = {
    "mlprogram": [
        "errors",
        "extras files machine progress tables terminal",
        "package sealed",
        "ops",
        "analysis",
        "arithmetic",
        "kernels",
        "run",
        "contents coreml compare pipe",
        "execute",
        "kernel_report compare.packages",
        "ane coreai onnx",
        "cli",
        "__main__",
    ],
    "ane_book": [
        "device errors layout rope",
        "host options",
        "models text",
        "bundle weights",
        "reference",
        "conversion runtime",
        "evidence",
        "cli",
        "__main__",
    ],
    "ane_serve": [
        "kept llama_cache markers page tools",
        "slots splitting",
        "generation",
        "api bench cluster",
        "keys pool",
        "jobs",
        "metrics",
        "middleware sending",
        "app json_lines",
        "server",
        "cli",
    ],
    "swift_tables": ["recording segments shapes", "characters", "packed", "__main__"],
}

PROGRAMS = {"ane-book": ane_book, "mlprogram": mlprogram}


# --- README


def fenced_blocks(languages: set[str], file: Path = README) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", file.read_text(), re.M | re.S)
    return [body for language, body in blocks if language in languages]


def shell_commands(program: str, file: Path = README) -> list[list[str]]:
    """Every call of a program in a file's shell blocks and in a line of its text, as words."""
    lines = "\n".join(fenced_blocks({"bash", "sh", "console"}, file)).splitlines()
    lines += re.findall(rf"`({program} [a-z][^`\n]+)`", file.read_text())
    calls = (re.split(r"\s#|[|;&]", line)[0].removeprefix("$ ").split() for line in lines)
    return [words for words in calls if words[:1] == [program] and words[1] != "..."]


def test_readme_names_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for words in shell_commands("make") for word in words[1:] if "=" not in word}
    assert {"book", "test"} <= named, "README has to show how to build the book and run the tests"
    assert named <= targets


def test_readme_is_one_page():
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.parametrize("program", PROGRAMS)
def test_readmes_and_pages_show_commands_that_exist(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    texts = ("README.md", "*/README.md", "book/*.md", "research/*.md")
    files = [file for text in texts for file in ROOT.glob(text)]
    calls = [call for file in files for call in shell_commands(program, file)]
    calls = [call for call in calls if call != FORMAT.split()]
    assert calls, "README has to show the command line"
    said = {}
    for words in calls:
        if (name := words[1]) not in said:
            result = PROGRAMS[program](name, "--help")
            assert result.returncode == 0, f"`{' '.join(words)}`: {result.stderr}"
            said[name] = result.stdout
        flags = [word.split("=")[0] for word in words if word.startswith("--")]
        assert [flag for flag in flags if flag not in said[name]] == [], words


def tree_paths() -> Iterator[str]:
    """The paths in CONTRIBUTING's tree: one a line, its role after it, deeper in its folder."""
    trees = fenced_blocks({"", "text"}, CONTRIBUTING)
    assert len(trees) == 1, "CONTRIBUTING has to show the tree once, in a ```text block"
    parents: list[str] = []
    for line in filter(str.strip, trees[0].splitlines()):
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        parents[depth:] = [name]
        yield "".join(parents)


def test_contributings_tree_is_the_repositorys():
    """It names folders: all of the repository's own, and all rooms of the libraries."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = list(tree_paths())
    assert len(paths) <= 60
    assert [path for path in paths if not (ROOT / path).is_dir()] == []
    for folder in (ROOT, *LIBRARIES.values()):
        files = [path.relative_to(folder).parts for path in tracked(folder)]
        rooms = {folder / parts[0] for parts in files if len(parts) > 1 and parts[0][0] != "."}
        left_out = rooms - {ROOT / path for path in paths}
        assert not left_out, f"CONTRIBUTING's tree leaves out {sorted(left_out)}"


def test_notice_names_what_there_is():
    paths = re.findall(r"[a-z_]+/[\w./-]+\w", (ROOT / "NOTICE").read_text())
    ours = [path for path in paths if (ROOT / path.split("/")[0]).exists()]
    assert len(ours) > 15 and [path for path in ours if not (ROOT / path).exists()] == []


def test_each_seeded_fault_is_where_it_says():
    faults = tomllib.loads((ROOT / "tests" / "mutations" / "faults.toml").read_text("utf-8"))
    for name, fault in faults.items():
        assert (ROOT / fault["file"]).read_text("utf-8").count(fault["before"]) == 1, name


# --- pins


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements(without: tuple[str, ...] = ()) -> list[Requirement]:
    """What all distributions need of others; each needs its own of the same checkout."""
    projects = [PROJECT, *OTHERS]
    groups = [project["dependencies"] for project in projects]
    for project in projects:
        extras = project["optional-dependencies"]
        groups += [extras[name] for name in extras if name not in without]
    found = [Requirement(line) for group in groups for line in group]
    own = {project["name"] for project in projects}
    versions = {str(each.specifier) for each in found if each.name in own and each.specifier}
    assert versions == {f"=={project['version']}" for project in projects}
    return [requirement for requirement in found if requirement.name not in own]


def applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def needed() -> dict[str, str]:
    """Name and version of every installed distribution that the project needs, at any depth."""
    # `make` installs these for what needs them alone; some machines have no Core AI
    left_out = ("train", "field", "wheels", *(() if find_spec("coreai") else ("coreai",)))
    found, seen, todo = {}, set(), requirements(without=left_out)
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(requirement.name)
        found[key[0]] = distribution.version.split("+")[0]
        deeper = map(Requirement, distribution.requires or [])
        todo += [r for r in deeper if applies(r, requirement.extras)]
    return found


def test_every_requirement_is_pinned_within_its_bounds():
    pinned = pins()
    for requirement in requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"constraints.txt has no pin for {requirement}"
        assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.skipif(
    sys.platform != "linux"
    or sys.version_info[:2] != (3, 11)
    or not importlib.metadata.version("torch").endswith("+cpu"),
    reason="the pins name what Python 3.11 with a CPU build of torch needs on Linux",
)
def test_what_is_installed_is_what_is_pinned():
    pinned = pins()
    others = {n: f"{v}, pinned {pinned.get(n)}" for n, v in needed().items() if v != pinned.get(n)}
    assert not others, "mend constraints.txt, or install under it with `make`"


def test_what_is_pinned_takes_every_python_of_pyproject():
    """Its first patch too: Debian 12 has 3.11.2, and soupsieve 3 wants 3.11.5.

    Its 3.0 and 3.0.1 do not say so, and stop at the first selector.
    """
    oldest = re.search(r">=([\d.]+)", PROJECT["requires-python"])[1] + ".0"
    asked = {n: importlib.metadata.metadata(n).get("Requires-Python") or "" for n in needed()}
    assert not {name: v for name, v in asked.items() if not SpecifierSet(v).contains(oldest)}


@pytest.mark.skipif(not shutil.which("make"), reason="make is needed")
@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 13), (3, 14)])
def test_make_takes_the_interpreters_of_pyproject(tmp_path, version):
    """The interpreter is this one, under another version's number; what it installs is nothing."""
    python, nothing = tmp_path / "python3", tmp_path / "bin" / "python"
    nothing.parent.mkdir()
    own = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    for file, line in ((python, f'exec {sys.executable} -c "{own}" "$2"'), (nothing, "exit 0")):
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
    made = tmp_path / "installed"
    names = [f"PYTHON={python}", f"BIN={nothing.parent}", f"INSTALLED={made}"]
    done = subprocess.run(["make", "-C", ROOT, *names, made], capture_output=True, text=True)
    taken = SpecifierSet(PROJECT["requires-python"]).contains("{}.{}".format(*version))
    assert (done.returncode == 0, made.exists()) == (taken, taken), done
    assert taken or "Python 3.11, 3.12 or 3.13 is needed" in done.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="make is needed")
@pytest.mark.parametrize("home", ["its own", None, "", "/nonexistent", __file__])
def test_make_gives_a_home_to_who_has_none(tmp_path, home):
    own = str(tmp_path) if home == "its own" else home
    shutil.copy(ROOT / "Makefile", tmp_path)
    of_make = {"HOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # the tests themselves run in a `make`
    variables = {name: value for name, value in os.environ.items() if name not in of_make}
    variables |= {} if own is None else {"HOME": own}
    (tmp_path / "show.mk").write_text('show:\n\t@echo "$$HOME"; test -w "$$HOME"\n')
    show = ["make", "-f", "Makefile", "-f", "show.mk", "show"]
    done = subprocess.run(show, cwd=tmp_path, env=variables, capture_output=True, text=True)
    given = own if home == "its own" else str(tmp_path / "build" / "home")
    assert (done.returncode, done.stdout.strip()) == (0, given), done.stderr


# --- limits


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def test_files_and_functions_stay_short():
    long = []
    others = [p for end in ("c", "h") for p in ROOT.glob(f"mlprogram/src/**/*.{end}")]
    for path in [*SOURCES, *others, *ROOT.glob("swift/Sources/**/*.swift")]:
        if (lines := path.read_text().count("\n")) > MAX_FILE:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_FILE}")
    for path in SOURCES:
        name = path.relative_to(ROOT)
        for function, lines in functions(parsed(path)):
            if lines > MAX_FUNCTION:
                long.append(f"{name}: {function}() has {lines} lines, at most {MAX_FUNCTION}")
    assert not long, "\n".join(long)


def test_every_module_says_what_it_is_for():
    trees = {path: parsed(path) for path in SOURCES}
    assert not [
        str(path) for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)
    ]


def imported(library: str, tree: ast.Module) -> Iterator[str]:
    """The modules and names of a library that a source imports, without the library's name."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (n.partition(".")[2] for n in names if n.startswith(f"{library}."))


@pytest.mark.parametrize("library", FLOORS)
def test_a_room_imports_only_from_the_floors_below(library):
    floor = {room: i for i, rooms in enumerate(FLOORS[library]) for room in rooms.split()}

    def room_of(name: str) -> str | None:
        """The room that a module, or a name in it, is in: the most of `name` that has a floor."""
        while name and name not in floor:
            name = name.rpartition(".")[0]
        return name or None

    upward = []
    for path in LIBRARIES[library].rglob("*.py"):
        name = ".".join(path.relative_to(LIBRARIES[library]).with_suffix("").parts)
        if name == "__init__":
            continue
        room = room_of(name)
        assert room, f"say in FLOORS (tests/project/test_project.py) which floor {name} is on"
        for other in map(room_of, imported(library, parsed(path))):
            if other and other != room and floor[other] >= floor[room]:
                upward.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not upward, "\n".join(upward)


def test_the_executor_knows_nothing_of_the_book():
    """`mlprogram` is for anybody who converts with coremltools."""
    names = re.compile(r"ane[_-]book", re.I)
    sources = [
        path
        for path in (ROOT / "mlprogram").rglob("*")
        if path.suffix in {".py", ".c", ".h", ".toml"}
    ]
    assert len(sources) > 70
    # of lines that quote a source, name what to install or where to hand in, or that a file had
    allowed = re.compile(r"ane-book@[0-9a-f]{7}|FOLDERS = |OWN = |^ISSUES = ")
    lines = [(path, line) for path in sources for line in path.read_text().splitlines()]
    assert [each for each in lines if names.search(each[1]) and not allowed.search(each[1])] == []


def test_types_of_both_libraries_are_checked_without_exception():
    """`make lint` runs mypy, which takes a minute; no room is left out of it, and no error."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    pages = ROOT / "book" / "ane_book_pages"
    assert {ROOT / folder for folder in settings["files"]} == {*LIBRARIES.values(), pages}
    rules = [{*override} - {"module"} for override in settings["overrides"]]
    assert not {"exclude", "disable_error_code"} & settings.keys()
    # an extra that not every machine has is skipped on all, so that they find the same errors
    assert rules == [{"ignore_missing_imports"}, {"ignore_missing_imports", "follow_imports"}]
    assert settings["overrides"][1]["module"] == "coreai.*"
    assert all((folder / "py.typed").exists() for folder in LIBRARIES.values())
    blanket = re.compile(r"# type: ignore(?!\[)")
    assert [str(path) for path in SOURCES if blanket.search(path.read_text())] == []


def refused(path: Path) -> str | None:
    """Why a file may not be committed: too large for its kind, no text, or a notebook with outputs.

    Text is what decodes as such, so a wheel, an archive or a library passes under no name.
    """
    content, limit = path.read_bytes(), MAX_BYTES.get(path.suffix, MAX_TEXT)
    if len(content) > limit:
        return f"{path}: {len(content):,} bytes, at most {limit:,}"
    if path.suffix in MAX_BYTES:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{path}: neither text nor one of {sorted(MAX_BYTES)}"
    if path.suffix == ".ipynb" and any(cell.get("outputs") for cell in json.loads(text)["cells"]):
        return f"{path}: a notebook with outputs"
    return f"{path}: text with a zero byte" if "\0" in text else None


def tracked(folder: Path) -> list[Path]:
    """The files in git's index: what is committed, and what the next commit adds."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return [folder / name for name in listed.split("\0") if name]


def test_only_text_pictures_and_small_weights_are_committed():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = tracked(ROOT)
    assert ROOT / "README.md" in paths
    assert [why for path in paths if path.is_file() and (why := refused(path))] == []


# --- what contributors read


def test_contributing_names_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = [path for path in re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:md|py))`", text)]
    assert len(paths) > 25
    files = {path.relative_to(ROOT).as_posix() for path in tracked(ROOT)}
    missing = [path for path in paths if not any(f"/{path}" in f"/{file}" for file in files)]
    assert missing == []
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= made


@pytest.mark.long
def test_scripts_that_make_runs_start():
    """Most of them take too long for a test; what they import is asked of all."""
    text = (ROOT / "Makefile").read_text()
    scripts = sorted(set(re.findall(r"python (tests/[\w/]+\.py)", text)))
    assert len(scripts) > 7
    running = [
        subprocess.Popen([sys.executable, script, "--help"], cwd=ROOT, stdout=subprocess.DEVNULL)
        for script in scripts
    ]
    codes = [child.wait() for child in running]
    assert [s for s, code in zip(scripts, codes, strict=True) if code] == []


def test_versions_are_the_same_everywhere():
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    versions = {citation, *(project["version"] for project in OTHERS)}
    assert versions == {PROJECT["version"]}
    for name, folder in LIBRARIES.items():
        assert f'__version__ = "{PROJECT["version"]}"' in (folder / "__init__.py").read_text(), name


@pytest.mark.parametrize("record, typed", [(Recipe, RecipeOptions), (Sampling, SamplingOptions)])
def test_options_are_typed_by_their_names(record, typed):
    """What editors offer of `generate`, `convert` and `plan` is what these take."""
    assert typed.__annotations__.keys() == record.model_fields.keys()


def test_no_class_name_is_taken_twice():
    """Whoever reads a name in one room knows it in all of them."""
    places: dict[str, list[str]] = {}
    for path in [path for folder in LIBRARIES.values() for path in folder.rglob("*.py")]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
