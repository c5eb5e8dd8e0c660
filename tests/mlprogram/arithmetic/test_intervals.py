"""The intervals that `depends` rests on hold what programs compute."""

from contextlib import suppress
from math import inf

from _package import const, op, typed
from _random_forms import RandomProgram
from mlprogram import MLProgram
from mlprogram.analysis.ranges import Ranges
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.reader import Package
import numpy as np
import pytest


def outside(program: MLProgram, given: dict) -> list[str]:
    """The values that have numbers beyond their intervals, but for what half precision rounds."""
    ranges, found = Ranges(program.package.functions[program.name]), []
    for name, array in program.plain().trace(given, program.make_state()):
        numbers = array.astype(np.float64)
        numbers = numbers[~np.isnan(numbers)]
        (low, high), room = ranges.of(name), 1 + (2**-10 if array.dtype == np.float16 else 1e-6)
        low, high = min(low * room, low / room), max(high * room, high / room)
        if numbers.size and not (low <= numbers.min() and numbers.max() <= high):
            found.append(f"{name}: {numbers.min()} to {numbers.max()}, not {low} to {high}")
    return found


@pytest.mark.parametrize("seed", range(24))
def test_what_random_programs_compute_lies_within(seed, tmp_path):
    made = RandomProgram(seed)
    program = MLProgram(made.save(tmp_path / "p.mlpackage"))
    assert outside(program, made.arrays(0)) == []
    with suppress(InvalidInput, InvalidPackage):  # an index or a split that a wild input makes
        assert outside(program, made.arrays(1, wild=True)) == []


X, Y = typed("fp32", 4), typed("int32", 4)

#: Ops on x, a vector of floats or, as "whole", of int32; and the interval of the last.
CHAINS = {
    "half open": ([op("relu", {"y": X}, x="x")], (0, inf)),
    "a product": ([op("sigmoid", {"a": X}, x="x"), op("mul", {"y": X}, x="a", y=const(-3.0))],
                  (-3, 0)),
    "a remainder": ([op("abs", {"a": Y}, x="whole"), op("mod", {"y": Y}, x="a", y=const(7))],
                    (-7, 7)),  # the least int32 is its own magnitude
    "of places": ([op("argsort", {"a": Y}, x="x"), op("mod", {"y": Y}, x="a", y=const(7))], (0, 3)),
    "a choice": ([op("select", {"y": X}, a=const([1.0] * 4), b=const(-2.0),
                     cond=const([True, False] * 2))], (-2, 1)),
    "what wraps": ([op("add", {"y": Y}, x="whole", y=const(1))], (-(1 << 31), (1 << 31) - 1)),
    "a quotient": ([op("sigmoid", {"a": X}, x="x"),
                    op("floor_div", {"y": X}, x="a", y=const(2.0))], (0, 1)),
    "what overflows": ([op("sigmoid", {"a": X}, x="x"),
                        op("mul", {"a0": X}, x="a", y=const(3.0)),
                        *(op("square", {f"a{i + 1}": X}, x=f"a{i}") for i in range(10)),
                        op("identity", {"y": X}, x="a10")], (0, inf)),
    "no number": ([op("sub", {"y": X}, x=const([np.inf] * 4), y=const([np.inf] * 4))],
                  (-inf, inf)),
}  # fmt: skip


@pytest.mark.parametrize("ops, interval", CHAINS.values(), ids=list(CHAINS))
def test_intervals_are_narrow_where_an_op_says_so(make, ops, interval):
    function = Package(make(ops, ("y",), {"x": X, "whole": Y})).functions["main"]
    assert Ranges(function).of("y") == interval
