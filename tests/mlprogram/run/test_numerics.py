"""Overflow, NaN and lost bits of half precision, each at the op where it starts."""

from _foreign import built
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
from mlprogram.compare.numerics import report
from mlprogram.run import live as executor
import numpy as np
import pytest


def program(*shapes, dtype=types.fp16, states=()):
    """Decorator: a function of MIL values becomes an MLProgram."""
    specs = [mb.TensorSpec(shape, dtype=dtype) for shape in shapes]
    specs += [mb.StateTensorSpec(shape, dtype=types.fp16) for shape in states]
    return built(*specs)


def told(running: MLProgram, **inputs) -> list[tuple[str, str, str]]:
    return [(f.kind, f.op, f.name) for f in report(running, inputs)]


class TestOverflow:
    def test_the_op_and_the_value_it_would_have(self):
        @program((4,))
        def running(x):
            square = mb.mul(x=x, y=x, name="square")
            return mb.rsqrt(x=mb.mul(x=square, y=np.float16(2), name="twice"), name="y")

        (finding,) = report(running, {"x": [1, 2, 300, 400]})
        assert (finding.kind, finding.name, finding.elements, finding.size) == (
            "overflow", "square", 2, 4
        )  # fmt: skip
        assert finding.largest == 160_000
        assert str(finding) == (
            "mul 'square': 160,000 at most, beyond fp16's 65,504 (2 of 4 elements)"
        )
        assert told(running, x=np.ones(4)) == []

    def test_what_single_precision_has_as_well_is_none(self):
        @program((3,))
        def running(x):
            mask = np.array([0, -np.inf, 0], np.float16)
            return mb.softmax(x=mb.add(x=x, y=mask, name="masked"), axis=-1, name="y")

        assert told(running, x=np.zeros(3)) == []

    def test_an_input(self):
        @program((2,))
        def running(x):
            return mb.relu(x=x, name="y")

        assert told(running, x=[1e6, 1]) == [("overflow", "input", "x")]

    def test_a_program_without_half_precision(self):
        @program((2,), dtype=types.fp32)
        def running(x):
            return mb.mul(x=x, y=x, name="y")

        assert told(running, x=[1e6, 1e-6]) == []


class TestNan:
    def test_after_an_overflow_only_where_it_appears_first(self):
        @program((2,))
        def running(x):
            square = mb.mul(x=x, y=x, name="square")
            zero = mb.sub(x=square, y=square, name="zero")
            return mb.add(x=zero, y=x, name="y")

        overflow, missing = report(running, {"x": [300, 1]})
        assert (overflow.name, missing.kind, missing.name) == ("square", "nan", "zero")
        assert str(missing) == "sub 'zero': NaN appears here first (1 of 2 elements)"

    def test_in_both_precisions(self):
        @program((2,))
        def running(x):
            return mb.log(x=x, name="y", epsilon=np.float16(0))

        (finding,) = report(running, {"x": [-1, 1]})
        assert str(finding).endswith("(1 of 2 elements), in single precision as well")


class TestLostBits:
    def test_the_share_of_small_values(self):
        @program((4,))
        def running(x):
            small = mb.mul(x=x, y=np.float16(1e-4), name="small")
            return mb.mul(x=small, y=np.float16(1), name="y")

        (finding,) = report(running, {"x": [0, 1e-4, 1e-1, 1]})
        assert (finding.kind, finding.name) == ("denormal", "small")
        assert (finding.elements, finding.size, finding.vanished) == (2, 3, 1)
        assert "2 of 3 elements that are not zero, 1 became 0" in str(finding)

    def test_a_few_are_not_worth_a_word(self):
        @program((20,))
        def running(x):
            return mb.mul(x=x, y=np.float16(1e-4), name="y")

        x = np.ones(20)
        x[0] = 1e-3
        assert told(running, x=x) == []
        x[1] = 1e-3
        assert told(running, x=x) == [("denormal", "mul", "y")]


def test_a_state_is_where_it_starts_and_stays_as_it_was():
    @program((2,), states=[(2,)])
    def running(x, memory):
        before = mb.read_state(input=memory)
        after = mb.add(x=before, y=x, name="sum")
        mb.coreml_update_state(state=memory, value=after)
        return mb.mul(x=after, y=after, name="y")

    state = running.make_state()
    state.write_state("memory", np.array([299, 0], np.float16))
    assert [f.name for f in report(running, {"x": [1, 1]}, state)] == ["y"]
    assert report(running, {"x": [1, 1]}) == []
    assert state.read_state("memory").tolist() == [299, 0]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_both_runs_go_whatever_the_precision_of_the_program(precision):
    @program((2,))
    def running(x):
        return mb.mul(x=x, y=x, name="y")

    chosen = MLProgram(running.package, precision=precision)
    assert told(chosen, x=[300, 1]) == [("overflow", "mul", "y")]


def test_it_holds_no_values(watched):
    @program((8,))
    def running(x):
        for _ in range(30):
            x = mb.add(x=x, y=np.float16(1))
        return x

    most = watched(executor, "as_array")
    report(running, {"x": np.ones(8)})
    assert 2 <= most() <= 4  # of 60: two at hand, two that are just being made
