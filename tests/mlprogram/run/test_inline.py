"""Random programs with inline constants give numpy's answers, call after call."""

from _inline import SHAPE, STATES, make_program
from mlprogram import MLProgram
import numpy as np
import pytest

CALLS = 3


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed, tmp_path):
    for number in range(10):
        made = make_program(10 * seed + number)
        path = made.write(tmp_path / str(number))
        for optimize in (True, False):
            program = MLProgram(path, optimize=optimize)
            state = program.make_state()
            expected = {name: np.zeros(SHAPE, np.float32) for name in STATES}
            for call in range(CALLS):
                x = np.full(SHAPE, call, np.float32)
                found, right = program.predict({"x": x}, state), made.evaluate(x, expected)
                for name, array in right.items():
                    np.testing.assert_array_equal(found[name], array)
                for name in STATES:
                    np.testing.assert_array_equal(state.read_state(name), expected[name])
                for array in found.values():
                    array.fill(99)  # the caller's own
                np.testing.assert_array_equal(x, call)
