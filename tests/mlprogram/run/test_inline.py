"""Random programs with inline constants give numpy's answers, call after call."""

from _inline import SHAPE, STATES, make_program
from _long import long_but
from mlprogram import MLProgram
from mlprogram.kernels import native
from mlprogram.run.stretches import NativeStretch
import numpy as np
import pytest

CALLS = 3


@pytest.mark.parametrize("part", long_but(range(20), 0))
def test_random_programs(part, tmp_path):
    """1,200 in all, in C and op by op."""
    in_c = 0
    for seed in range(60 * part, 60 * part + 60):
        made = make_program(seed)
        path = made.write(tmp_path / str(seed))
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
            parts = getattr(program.compiled, "parts", ())
            in_c += sum(len(part.steps) for part in parts if isinstance(part, NativeStretch))
    assert in_c > 60 * 4 or not native.available()
