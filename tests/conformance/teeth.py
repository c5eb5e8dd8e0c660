"""What a case of Apple's proves: how far results are off, and whether it would notice.

A case of a tolerance of 0.5 on numbers from -0.2 to 0.2 passes with any executor. So a case that
has passed is called once more, in the same process, with every prediction spoilt: numbers times 1.1
plus 0.01, whole numbers plus one. It has teeth if it fails then. What takes the time is not done
again: the conversions of the first call are played back, in their order, and so are predictions.

Beside that, each array that Apple's code compares with an expected one is remembered with its error
as a share of the expected values' range, and each prediction is compared with the one in single
precision by the plain meaning of each op.
"""

from functools import wraps

from coremltools.converters import _converters_entry as entry
import numpy as np
import pytest

#: Apple's tests compare with these; a case's own `assert a == b` shows in its teeth alone.
COMPARISONS = ("assert_allclose", "assert_array_equal", "assert_array_almost_equal", "assert_equal")
convert = entry.mil_convert


class Case:
    """What a running case has converted, predicted and compared."""

    def __init__(self):
        self.models = []  # of each conversion: the model, or the error that it ended with
        self.predictions = []  # [program, inputs, outputs or error]
        self.shares = []  # errors against expected values
        self.again = None  # in the second call, what is left of the first one's
        self.same = True  # whether the second call is the first one again, but for the outputs

    def converted(self, *arguments, **options):
        """`mil_convert`, or what came of it in the first call."""
        if self.again is None:
            self.models.append(outcome(convert, *arguments, **options))
        return result(self.models[-1] if self.again is None else self._next("models"))

    def predicted(self, program, inputs, predict):
        """The outputs of `predict()`, or in the second call the first call's, spoilt."""
        if self.again is None:
            self.predictions.append([program, inputs, outcome(predict)])
            return result(self.predictions[-1][2])
        _, before, found = self._next("predictions")
        self.same &= alike(before, inputs)
        return {name: spoilt(value) for name, value in result(found).items()}

    @property
    def answers(self):
        """The predictions that gave outputs."""
        return [found for found in self.predictions if isinstance(found[2], dict)]

    def _next(self, what: str):
        self.same &= bool(self.again[what])
        return self.again[what].pop(0)

    def compared(self, found, expected):
        """Remember the error of a predicted array; other arrays are not the executor's."""
        predicted = (value for _, _, outputs in self.answers for value in outputs.values())
        if self.again is None and any(found is value for value in predicted):
            self.shares.append(share(found, expected))

    def notices(self, call) -> bool | None:
        """Whether `call`, the case once more, fails on spoilt predictions.

        None where it is not the same case again: with other inputs, what it compares does not
        belong together.
        """
        self.again = {"models": [*self.models], "predictions": [*self.predictions]}
        try:
            call()
        except pytest.skip.Exception:
            return None
        except (Exception, pytest.fail.Exception):
            return True if self.same else None
        return False if self.same else None

    def share_of_single(self) -> float | None:
        """The largest error against single precision throughout; None for states and random ops."""
        found = []
        for program, inputs, outputs in self.answers:
            random = any(op.type.startswith("random") for op in program.operations)
            if program.states or random:
                return None
            single = program.plain("fp32").predict(inputs)
            found += [share(outputs[name], single[name]) for name in outputs]
        return largest(found)


def outcome(function, *arguments, **options):
    """What a call returns, or the error that it raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def result(outcome):
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def alike(before: dict, inputs: dict) -> bool:
    try:
        np.testing.assert_equal(inputs, before)
    except AssertionError:
        return False
    return True


def spoilt(value):
    """An output as a broken executor would give it."""
    if isinstance(value, dict):
        return {key: spoilt(item) for key, item in value.items()}
    if isinstance(value, str):
        return f"{value}, not"
    if not isinstance(value, int | float | np.ndarray | np.generic):
        return None  # an image
    array = np.asarray(value)
    wrong = array * 1.1 + 0.01 if array.dtype.kind == "f" else array + 1
    return wrong.astype(array.dtype) if isinstance(value, np.ndarray) else type(value)(wrong)


def share(found, expected) -> float | None:
    """The largest error as a share of the expected values' range; None if these are no numbers.

    Zero belongs to the range, which is one where all values are zero. Places where just one of the
    two is finite count as infinite.
    """
    try:
        found, expected = (np.asarray(array, np.float64) for array in (found, expected))
        found, expected = np.broadcast_arrays(found, expected)
    except (TypeError, ValueError):
        return None
    finite = np.isfinite(expected) & np.isfinite(found)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    found, expected = found[finite], expected[finite]
    if not expected.size:
        return 0.0
    size = max(expected.max(), 0) - min(expected.min(), 0) or 1.0
    return float(np.abs(found - expected).max() / size)


def largest(shares: list[float | None]) -> float | None:
    return max((one for one in shares if one is not None), default=None)


def watch(case) -> None:
    """Let `case()` see conversions and comparisons of Apple's code."""
    entry.mil_convert = lambda *arguments, **options: case().converted(*arguments, **options)
    for name in COMPARISONS:
        setattr(np.testing, name, watched(getattr(np.testing, name), case))


def watched(compare, case):
    @wraps(compare)
    def wrapper(*arguments, **options):
        result = compare(*arguments, **options)
        if len(arguments) > 1:
            case().compared(*arguments[:2])
        return result

    return wrapper
