"""Who shares memory with whom: found out in time and memory that grow with the program."""

import cProfile
import pstats
import tracemalloc

from _package import block, const, op, run, typed, write
from mlprogram import MLProgram
from mlprogram.analysis.memory import predict
from mlprogram.package.reader import Package
from mlprogram.run.plan import Planner
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


def chained(count, shows=""):
    """A state is read once, its rows are updated one after the other, and it is written once.

    shows: what some op reads of it late: "before", "half", or nothing.
    """
    yield op("read_state", {"u0": STATE}, input="s")
    for i in range(count):
        at = {"begin": const([i, 0]), "end": const([i + 1, 4])}
        yield op("slice_update", {f"u{i + 1}": STATE}, x=f"u{i}", update="x", **at)
        yield op("reshape", {f"v{i + 1}": STATE}, x=f"u{i + 1}", shape=const([8, 4]))
        yield op("mul", {f"m{i + 1}": STATE}, x=f"v{i + 1}", y=f"v{i + 1}")
    late = {"before": "u0", "half": f"v{count // 2}"}.get(shows, f"m{count}")
    yield op("write_state", {}, input="s", data=f"u{count}")
    yield op("add", {"y": STATE}, x=late, y=f"m{count // 2}")


@pytest.mark.parametrize("shows, in_place", [("", 6), ("before", 0), ("half", 3)])
def test_updates_of_updates_are_in_place_where_nobody_sees_it(tmp_path, shows, in_place):
    """As torch.export writes a cache; from one on that a later reader would see, they copy."""
    inputs = {"x": ROW, "s": typed("fp32", 8, 4, kind="state")}
    path = write(tmp_path / "p", chained(6, shows), ["y"], inputs)
    program = MLProgram(path)
    assert len(Planner(program._function, False, {}).in_place) == in_place
    plain, states = program.plain(), [program.make_state(), program.make_state()]
    for call in range(3):
        given = {"x": np.arange(4, dtype=np.float32)[None] + call + 1}
        found, expected = (
            p.predict(given, s) for p, s in zip((program, plain), states, strict=True)
        )
        np.testing.assert_array_equal(found["y"], expected["y"])
        np.testing.assert_array_equal(*[s.read_state("s") for s in states])
