"""Quick and long tests: what `--long` runs and leaves out."""

from pathlib import Path

pytest_plugins = "pytester"
FILE = """
import pytest

def test_quick(): pass

@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2])
def test_long(n): pass
"""


def test_every_long_one_has_one_turn_and_runs_where_it_is_named(pytester, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    pytester.makeini("[pytest]\nmarkers = long: takes long")
    pytester.makeconftest('pytest_plugins = ["_long"]')
    pytester.makepyfile(test_one=FILE, test_other=FILE)
    result = pytester.runpytest()
    result.assert_outcomes(passed=2, deselected=4)
    result.stdout.fnmatch_lines(["long tests left out: 4; *make test-all*--long all*"])
    pytester.runpytest("--long", "all").assert_outcomes(passed=6)
    turns = [pytester.runpytest("--long", f"{n}/3").parseoutcomes()["passed"] for n in (1, 2, 3)]
    assert sum(turns) == 3 * 2 + 4
    pytester.runpytest("test_one.py::test_long[2]").assert_outcomes(passed=1)
    assert pytester.runpytest("--long=3/2").ret == 4
