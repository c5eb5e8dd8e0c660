"""`--long`: which of the tests that are marked `long` run; the others are left out, and counted.

Besides those of a turn, the ones run that the command line names, and with --lf those that failed.
Tests of a file share what they make, so a turn has all of a file or none; of the tests of the site
it has all of a page or none, for a page is visited once.
"""

import argparse
from collections.abc import Iterable
import re
import zlib

import pytest

LEFT_OUT = pytest.StashKey[int]()
RUN = (
    "`make test-all` or --long all runs them, --long 1/5 a fifth, and one named in full always runs"
)


def turn(text: str) -> tuple[int, int]:
    """(K, N) for the K-th of N parts: (0, 1) is none of them and (1, 1) all."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", {"none": "0/1", "all": "1/1"}.get(text, text))
    part, parts = map(int, match.groups()) if match else (0, 0)
    if text == "none" or 1 <= part <= parts:
        return part, parts
    raise argparse.ArgumentTypeError(f"{text!r} is neither none nor all nor K/N, such as 2/5")


def long_but(cases: Iterable, *quick) -> list:
    """Cases of a test, all long but the quick ones; a plain tuple is of several parameters."""
    found = []
    for case in cases:
        values = case if type(case) is tuple else [case]
        found.append(pytest.param(*values, marks=() if case in quick else pytest.mark.long))
    return found


def pytest_addoption(parser):
    what = "which tests marked `long` run: none (the default), all, or the K-th of N parts of them"
    parser.addoption("--long", type=turn, default="none", metavar="none|all|K/N", help=what)


def named(item: pytest.Item) -> bool:
    """Whether the command line names the test, its function or its class, and not just its file."""
    own = item.nodeid.partition("::")[2]
    for file, _, rest in (argument.partition("::") for argument in item.config.args):
        same = rest and (item.config.invocation_params.dir / file).resolve() == item.path.resolve()
        if same and re.match(rf"{re.escape(rest)}($|\[|::)", own):
            return True
    return False


def shares(item: pytest.Item) -> tuple[str, str]:
    """Equal for tests that should be of one turn: the file and the page of the site, if any."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.nodeid.partition("::")[0], str(parameters.get("page", ""))


def turn_of(item: pytest.Item, parts: int) -> int:
    """The test's turn, from 1 on: the same whatever else is collected, named or chosen by `-k`."""
    return zlib.crc32("".join(shares(item)).encode()) % parts + 1


def failed_last(config: pytest.Config) -> set[str]:
    """The tests that `--lf` runs again, by their names."""
    if not config.getoption("lf", False):
        return set()
    return set(config.cache.get("cache/lastfailed", {}))


@pytest.hookimpl(trylast=True)  # after -k and -m, so that none is counted that they leave out
def pytest_collection_modifyitems(config, items):
    part, parts = config.option.long
    long = [item for item in items if item.get_closest_marker("long")]
    others, failed = [item for item in long if turn_of(item, parts) != part], failed_last(config)
    left_out = {item for item in others if item.nodeid not in failed and not named(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=[*left_out])
    config.stash[LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):
        config.workeroutput["long"] = len(left_out)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's: each worker has left out the same
def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("long", 0)


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"long tests left out: {count}; {RUN}")
