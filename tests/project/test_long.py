"""Quick and long tests: what `--long` runs, leaves out, counts and refuses."""

import os
from pathlib import Path
import re
import shutil
import subprocess

from _long import long_but, turn, turn_of
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

pytest_plugins = "pytester"
FILES = {
    "test_one": """
import pytest

def test_quick(): pass

@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2])
def test_long(n): pass

@pytest.mark.long
class TestLong:
    def test_other(self): pass
""",
    "test_site": """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("page", "abc")
@pytest.mark.parametrize("what", [1, 2])
def test_page(page, what): pass
""",
}
LONG, ALL = 9, 10


CONFTEST = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parents[1])!r})
pytest_plugins = ["_long"]
"""


@pytest.fixture
def run(pytester):
    """`run(*arguments)` -> what pytest said of two files with 1 quick and 9 long tests."""
    pytester.makeini("[pytest]\nmarkers = long: takes long")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**FILES)
    return lambda *arguments: pytester.runpytest("-rA", *arguments)


def passed(result) -> set[str]:
    return {line.split()[1] for line in result.outlines if line.startswith("PASSED ")}


def test_the_quick_ones_run_and_the_others_are_counted_in_a_line(run):
    result = run()
    result.assert_outcomes(passed=1, deselected=LONG)
    result.stdout.fnmatch_lines([f"long tests left out: {LONG}; *make test-all*--long all*"])


def test_all_run(run):
    result = run("--long", "all")
    result.assert_outcomes(passed=ALL)
    result.stdout.no_fnmatch_line("*left out*")


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_every_long_one_has_one_turn_and_what_is_shared_stays_together(run, parts):
    turns = [passed(run("--long", f"{part}/{parts}")) for part in range(1, parts + 1)]
    assert len(set.union(*turns)) == ALL and set.intersection(*turns) >= {"test_one.py::test_quick"}
    turns = [tests - {"test_one.py::test_quick"} for tests in turns]
    assert sum(map(len, turns)) == LONG  # a test runs in one of them
    together = [{t for t in set.union(*turns) if "one" in t}]
    together += [{f"test_site.py::test_page[{what}-{page}]" for what in (1, 2)} for page in "abc"]
    assert all(any(group <= tests for tests in turns) for group in together)


def test_a_turn_does_not_depend_on_what_else_is_collected(run):
    for part in (1, 2, 3):
        quick, turn = "test_one.py::test_quick", ("--long", f"{part}/3")
        whole = passed(run(*turn)) - {quick}
        apart = [passed(run(*turn, name)) for name in ("test_one.py", "test_site.py")]
        assert set.union(*apart) - {quick} == whole
        chosen = passed(run(*turn, "-k", "page and c"))
        assert chosen == {name for name in whole if "-c]" in name}


def test_turns_are_fairly_even():
    """Of a hundred files: a hash that gave a turn all of them, or none, would be noticed."""

    class Item:
        def __init__(self, number):
            self.nodeid = f"tests/test_{number}.py::test_it"

    turns = [turn_of(Item(number), 5) for number in range(100)]
    assert set(turns) == {1, 2, 3, 4, 5} and max(map(turns.count, turns)) <= 40


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("test_one.py::test_long", 2),
        ("test_one.py::test_long[2]", 1),
        ("./test_one.py::TestLong::test_other", 1),
        ("test_one.py::TestLong", 1),
        ("test_one.py::test_quick", 1),
        ("test_one.py", 1),
    ],
)
def test_one_that_is_named_runs(run, name, count):
    run(name).assert_outcomes(passed=count, deselected=3 if "::" not in name else 0)


def test_one_that_is_named_from_elsewhere_runs(run, pytester, monkeypatch):
    file = pytester.path / "test_one.py"
    run(f"{file}::TestLong").assert_outcomes(passed=1)
    (pytester.path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(pytester.path.parent / "elsewhere")
    own = "--rootdir", str(pytester.path), "-c", str(pytester.path / "tox.ini")
    run(*own, f"../{pytester.path.name}/test_one.py::test_long").assert_outcomes(passed=2)
    run(*own, f"{file}::test_long[1]").assert_outcomes(passed=1)


def test_one_that_failed_last_runs_again(run, pytester):
    file = pytester.path / "test_one.py"
    file.write_text(file.read_text().replace("test_long(n): pass", "test_long(n): assert n == 1"))
    run("--long", "all").assert_outcomes(passed=ALL - 1, failed=1)
    run("--lf").assert_outcomes(failed=1)
    file.write_text(file.read_text().replace("assert n == 1", "assert n"))
    run("--lf").assert_outcomes(passed=1)
    run("--lf").assert_outcomes(passed=1, deselected=LONG)  # none has failed: the quick one alone


def test_cases_are_long_but_the_quick_ones():
    cases = long_but([("a", 1), ("b", 2), "c", ["d"]], ("b", 2), "c")
    assert [case.values for case in cases] == [("a", 1), ("b", 2), ("c",), (["d"],)]
    assert [bool(case.marks) for case in cases] == [True, False, False, True]


def test_what_another_option_leaves_out_is_not_counted(run):
    result = run("-k", "page and 1 or quick")
    result.stdout.fnmatch_lines(["long tests left out: 3; *"])


def test_workers_leave_out_the_same_and_it_is_told_once(run, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # workers begin sooner
    names = ["test_one.py::test_long[1]", "test_site.py", "test_one.py::test_quick"]
    result = run("-p", "xdist.plugin", "-n", "2", *names)
    result.assert_outcomes(passed=2)
    assert [line.split(";")[0] for line in result.outlines if "left out" in line] == [
        "long tests left out: 6"
    ]


@pytest.mark.parametrize("wrong", ["", "some", "0/2", "3/2", "1/0", "1/2/3", "1.5/2", "²/3"])
def test_what_is_no_turn_is_refused_in_a_line(run, wrong):
    result = run(f"--long={wrong}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = [line for line in result.errlines if "argument --long" in line]
    assert len(said) == 1 and "neither none nor all nor K/N" in said[0]


def test_turns_are_read():
    assert [turn(text) for text in ("none", "all", "2/3")] == [(0, 1), (1, 1), (2, 3)]


@pytest.fixture
def ci(tmp_path):
    """`ci(*arguments, **environment)` -> what `.ci/run` would have make do."""
    if not shutil.which("bash") or not shutil.which("git"):
        pytest.skip("needs bash and git")
    script = tmp_path / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", script)
    for name in ("make", "chromedriver"):
        (tmp_path / name).write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
        (tmp_path / name).chmod(0o755)

    def run(*arguments: str, **environment: str) -> list[str]:
        kept = {name: value for name, value in os.environ.items() if name != "GITHUB_RUN_NUMBER"}
        path = f"{tmp_path}{os.pathsep}{kept['PATH']}"
        command = ["bash", script, *arguments]
        done = subprocess.run(
            command, env=kept | {"PATH": path} | environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_each_run_of_ci_has_the_next_turn(ci):
    number = re.compile(r"PYTEST_FLAGS=--long (\d+)/(\d+)")
    runs = [ci("unit", GITHUB_RUN_NUMBER=str(n)) for n in range(20)]
    assert {tuple(words[:2]) for words in runs} == {("lint", "unit")}
    turns = [tuple(map(int, number.fullmatch(words[-1]).groups())) for words in runs]
    (parts,) = {parts for _, parts in turns}
    assert [part for part, _ in turns] == [n % parts + 1 for n in range(20)]


def test_a_run_of_ci_is_make_test_with_a_turn_of_the_commits_count(ci, tmp_path):
    *targets, flags, long = ci()  # no commits, no count
    assert (targets, flags) == (["lint", "test"], "BOOK_FLAGS=-n -W --keep-going")
    assert ci("site")[0] == "site", "of GitHub's two jobs the other one lints"
    assert re.fullmatch(r"PYTEST_FLAGS=--long 1/\d+", long)
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init"], ["add", "."], ["commit", "-m", "one"]):
        subprocess.run([*own, *command], cwd=tmp_path / "checkout", check=True, capture_output=True)
    assert ci()[-1].startswith("PYTEST_FLAGS=--long 2/")
    assert ci("test-all")[-1] == "PYTEST_FLAGS=--long all"


def test_the_workflow_asks_for_targets_that_exist_and_publishes_what_all_have_passed():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text())["jobs"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r'"([a-z-]+)"', jobs["test"]["strategy"]["matrix"]["target"])
    assert {"unit", "site", "test-all"} == set(named) <= targets
    assert jobs["publish"]["needs"] == "test"
