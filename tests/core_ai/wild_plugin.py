"""pytest plugin: whatever a test runs by the executor, Core AI's runtime runs too.

A call of `MLProgram.predict`, as the package says it in either precision, is repeated by way of an
asset on the same inputs, and on a state of its own that saw the same calls. What came out is a line
of JSON in the file that ANE_BOOK_WILD names: the test and its file, the package, its function, how
many ops it has, and the largest difference over the largest number, or why it is not carried.
"""

from contextlib import contextmanager
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
import weakref

from mlprogram import MLProgram
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.errors import InvalidInput
import numpy as np
import pytest

ORIGINAL = MLProgram.predict
STATES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # Core AI's for the executor's
FOUND: dict[tuple, dict] = {}  # of the test that runs
BACKENDS: dict[str, CoreAIBackend] = {}


@contextmanager
def own_cache():
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANE_BOOK_CACHE", folder)
        yield


def apart(got: np.ndarray, want: np.ndarray) -> float:
    """The greatest difference over the greatest wanted number; infinite for another shape."""
    got, want = (np.atleast_1d(np.asarray(array, np.float64)) for array in (got, want))
    if got.shape != want.shape or (np.isnan(got) != np.isnan(want)).any():
        return float("inf")
    gap = np.abs(np.where(got == want, 0, got - want)[~np.isnan(want)]).max(initial=0)
    return float(gap and gap / np.abs(want[np.isfinite(want)]).max(initial=0))


def predict(self, inputs, state=None, **used):
    path = Path(self.package.path)
    plain = self._without is None or self.precision not in ("fp32", "fp16")
    if plain or isinstance(inputs, list) or path.suffix != ".mlpackage":
        return ORIGINAL(self, inputs, state, **used)
    row = FOUND.setdefault(
        (path.name, self.name, self.precision),
        {"ops": len(self.operations), "calls": 0, "difference": 0.0},
    )
    want = ORIGINAL(self, inputs, state)
    if "refused" in row:
        return want
    try:
        with own_cache():
            function = BACKENDS.setdefault(self.precision, CoreAIBackend(self.precision)).load(
                path, self.name
            )
    except InvalidInput as error:
        row["refused"] = str(error).replace(str(path), path.name)
        return want
    if state is not None and state not in STATES:
        STATES[state] = function.make_state()
    arrays = dict(zip(self.inputs, self._arrays(inputs), strict=True))
    got = function.predict(arrays, STATES[state] if state is not None else None)
    row["calls"] += 1
    row["difference"] = max([row["difference"], *(apart(got[n], want[n]) for n in want)])
    return want


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    FOUND.clear()
    yield
    with Path(os.environ["ANE_BOOK_WILD"]).open("a") as file:
        for (package, function, precision), row in FOUND.items():
            where = {"file": item.path.stem, "test": item.name}
            where |= {"package": Path(package).stem, "function": function, "precision": precision}
            file.write(json.dumps(where | row) + "\n")


def pytest_configure(config):
    MLProgram.predict = predict
