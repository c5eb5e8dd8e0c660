"""Kinds of machine: what the page says of them, and what a command that fails there leaves."""

import json
import os
from pathlib import Path
import sys

from _kinds import KINDS, NotTried, Way, interpreter
from _patience import until
import machines
import pytest

RECORD = json.loads(machines.RECORD.read_text("utf-8"))
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def test_the_page_says_what_the_record_says():
    assert machines.PAGE.read_text("utf-8") == machines.page(RECORD), "`make machines` writes it"


def test_the_record_has_every_kind_once_each_with_its_reason():
    # which other versions of Python there are depends on the one that this runs on
    names = [name for name in KINDS if not name.startswith("python")]
    assert [n for row in RECORD["rows"] if not (n := row["name"]).startswith("python")] == names
    for row in RECORD["rows"]:
        assert row["result"] in ("holds", "fails", "not tried")
        assert (row["reason"] is None) == (row["result"] == "holds")


def test_what_its_quick_parts_name_is_there():
    assert [test for test in machines.TESTS if not (machines.ROOT / test).exists()] == []
    pages = [machines.ROOT / "book" / f"{page}.md" for page in machines.PAGES]
    assert [page for page in pages if not page.exists()] == []


def test_a_failing_test_becomes_a_line(tmp_path):
    (tmp_path / "test_half.py").write_text("def test_it(): assert 1 / 2 == 0.4, 'a half'\n")
    (tmp_path / "pytest.ini").touch()
    with pytest.raises(machines.Failed) as failed:
        machines.run([*PYTEST, "-ra"], tmp_path, Way(), dict(os.environ), 600)
    assert str(failed.value).endswith("FAILED test_half.py::test_it - AssertionError: a half")


@pytest.mark.parametrize(
    "line, why",
    [
        (
            "echo 'page.md, cell 3, line 7: ValueError: no'; echo two pages failed",
            "page.md, cell 3",
        ),
        ("echo ERROR: no matching distribution >&2; echo done", "ERROR: no matching distribution"),
        ("echo 'NameError: one'; echo 'OSError: two'; echo; echo bye", "OSError: two"),
        ("echo first; echo; echo last", "last"),
        ("true", r"make(\[\d+\])?: \*\*\* \[Makefile:2: all\] Error 1"),
    ],
)
def test_a_failing_make_becomes_a_line(tmp_path, line, why):
    (tmp_path / "Makefile").write_text(f"all:\n\t@{line}; exit 1\n")
    with pytest.raises(machines.Failed, match=f"^make all: {why}"):
        machines.run(["make", "all"], tmp_path, Way(), dict(os.environ), 600)


def test_the_way_comes_before_the_command(tmp_path):
    way = Way(prefix=("sh", "-c", 'umask 077 && exec "$@"', "sh"))
    machines.run(["mkdir", "made"], tmp_path, way, dict(os.environ), 600)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


def test_what_hangs_is_ended_with_its_children(tmp_path):
    command = ["sh", "-c", "sleep 600 & echo $! > child; wait"]
    with pytest.raises(machines.Failed, match="sh -c: not done after 2 s"):
        machines.run(command, tmp_path, Way(), dict(os.environ), 2)
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    # It is gone, or ended and waits for a parent to look.
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")


def test_an_interpreter_that_is_not_here_is_told():
    with pytest.raises(NotTried, match=r"no python2\.9 with venv"):
        interpreter("2.9")


def test_no_compiler_is_left_and_all_else_is(tmp_path):
    with KINDS["no-compiler"].make(tmp_path) as way:
        programs = Path(way.environment["PATH"])
        assert not {"cc", "gcc", "clang"} & set(os.listdir(programs))
        assert {"make", "git", "sh"} <= set(os.listdir(programs))


def test_the_words_of_the_record_say_by_which_seed_tests_are_shuffled(tmp_path):
    with KINDS["random-order"].make(tmp_path) as way:
        seed = way.pytest.rpartition("--random-order-seed=")[2]
    assert seed.isdigit() and KINDS["random-order"].words.endswith(f" {seed}")


def test_busy_processes_end_with_their_kind(tmp_path):
    own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with KINDS["load"].make(tmp_path):
        pass
    if Path(own).exists():
        for child in Path(own).read_text().split():
            assert b"while True" not in Path(f"/proc/{child}/cmdline").read_bytes()
