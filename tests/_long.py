"""`--long`: which of the tests that are marked `long` run; the others are left out, and counted.

Tests of a file share what they make, so a turn has all of a file or none; of the tests of the site
it has all of a page or none, for a page is visited once.
"""

import argparse
from collections.abc import Iterable
import os
import re

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
    """Parameters of a test, all long but the quick ones."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.long) for case in cases]


def pytest_addoption(parser):
    what = "which tests marked `long` run: none (the default), all, or the K-th of N parts of them"
    parser.addoption("--long", type=turn, default="none", metavar="none|all|K/N", help=what)


def named(item: pytest.Item) -> bool:
    """Whether the command line names the test, its function or its class, and not just its file."""
    for file, _, rest in (argument.partition("::") for argument in item.config.args):
        path = os.path.relpath(item.config.invocation_params.dir / file, item.config.rootpath)
        name = f"{path.replace(os.sep, '/')}::{rest}"
        if rest and re.match(rf"{re.escape(name)}($|\[|::)", item.nodeid):
            return True
    return False


def shares(item: pytest.Item) -> tuple[str, str]:
    """Equal for tests that should be of one turn: the file and the page of the site, if any."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.nodeid.partition("::")[0], str(parameters.get("page", ""))


@pytest.hookimpl(trylast=True)  # after -k and -m, so that none is counted that they leave out
def pytest_collection_modifyitems(config, items):
    part, parts = config.option.long
    long = [item for item in items if item.get_closest_marker("long")]
    turns = {group: i % parts + 1 for i, group in enumerate(sorted(set(map(shares, long))))}
    left_out = {item for item in long if turns[shares(item)] != part and not named(item)}
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
