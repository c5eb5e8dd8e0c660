"""Who shares memory with whom: found out in time and memory that grow with the program."""

import cProfile
import pstats
import tracemalloc

from _package import block, const, op, run, typed, write
from ane_book.mil import MLProgram
from ane_book.mil.analysis.memory import predict
from ane_book.mil.package.reader import Package
import numpy as np
import pytest

X = typed("fp32", 6)
STATE, ROW = typed("fp32", 8, 4), typed("fp32", 1, 4)


def updates(count):
    """A row of a state is written in place, again and again."""
    for i in range(count):
        yield op("read_state", {f"r{i}": STATE}, input="s")
        at = {"begin": const([i % 8, 0]), "end": const([i % 8 + 1, 4])}
        yield op("slice_update", {f"u{i}": STATE}, x=f"r{i}", update="x", **at)
        yield op("write_state", {}, input="s", data=f"u{i}")
    yield op("read_state", {"z": STATE}, input="s")
    yield op("add", {"y": STATE}, x="z", y="z")


def views(count):
    """A view of a view of a view, each with a constant of its own."""
    for i in range(count):
        yield op("const", {f"k{i}": typed("int32", 1)}, val=const([6]))
        yield op("reshape", {f"v{i}": X}, x=f"v{i - 1}" if i else "x", shape=f"k{i}")
    yield op("add", {"y": X}, x=f"v{count - 1}", y="x")


def branches(count):
    """Each of them gives what the one before gave, or something new."""
    for i in range(count):
        before = f"v{i - 1}" if i else "x"
        yield op("mul", {f"m{i}": X}, x="x", y="x")
        either = [block([], [before]), block([], [f"m{i}"])]
        yield op("cond", {f"v{i}": X}, either, pred=const(True))
    yield op("add", {"y": X}, x=f"v{count - 1}", y="x")


KINDS = {
    "updates": (updates, {"x": ROW, "s": typed("fp32", 8, 4, kind="state")}),
    "views": (views, {"x": X}),
    "branches": (branches, {"x": X}),
}


def work(path):
    """Calls and bytes that it takes to find out who shares memory with whom."""
    (function,) = Package(path).functions.values()
    profile = cProfile.Profile()
    profile.runcall(predict, function)
    tracemalloc.start()
    predict(function)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return pstats.Stats(profile).total_calls, peak


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_program_is_twice_the_work(kind, tmp_path):
    make, inputs = KINDS[kind]
    short, long = (work(write(tmp_path / str(n), make(n), inputs=inputs)) for n in (300, 600))
    assert long[0] < 2.5 * short[0] and long[1] < 2.5 * short[1]


def test_every_update_is_in_place(tmp_path):
    make, inputs = KINDS["updates"]
    path = write(tmp_path / "p", make(20), inputs=inputs)
    assert ".clone()" not in MLProgram(path).compiled.source
    given = {"x": np.arange(4)[None]}
    np.testing.assert_array_equal(run(path, given)["y"], np.tile(2 * np.arange(4), (8, 1)))
    np.testing.assert_array_equal(run(path, given)["y"], run(path, given, optimize=False)["y"])
