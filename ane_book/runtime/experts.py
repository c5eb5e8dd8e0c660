"""Run the experts of a layer where each is a program: only those that some token chose.

Letters: C hidden size, E experts, T tokens of a call, n tokens of it that are no padding.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from ane_book.bundle.parts import Part
from ane_book.runtime.backends import LoadedFunction
import numpy as np

#: How often a program was called, by its package.
Calls = Counter[str]


class ExpertPrograms:
    """Runs the experts of one layer, in order; `calls` counts the calls of each.

    There may be thousands, of which a text uses a few, so `load` opens an expert when it is first
    called, for all sessions that share these programs.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        load: Callable[[Part], Mapping[str, LoadedFunction]],
        calls: Calls,
    ):
        self._parts, self._load, self._calls = parts, load, calls
        self._opened: dict[int, Mapping[str, LoadedFunction]] = {}
        self._lock = Lock()

    def clear(self) -> None:
        """Do nothing: experts keep nothing from call to call."""

    def run(self, function: str, values: dict, tokens: int) -> None:
        """Run the experts on `x` (1, C, 1, T) and `gates` (1, E, 1, T); puts their sum `y` into
        `values`.

        Only the gates of the first `tokens` columns choose; the sum is in single precision.
        Raises InvalidBundle for an expert that cannot be opened.
        """
        x, gates = values["x"], values["gates"]
        total = np.zeros(x.shape, np.float32)
        for expert in np.flatnonzero((gates[0, :, 0, :tokens] != 0).any(axis=1)):
            gate = np.ascontiguousarray(gates[:, expert : expert + 1])
            total += self._functions(expert)[function].predict({"x": x, "gate": gate})["y"]
            self._calls[self._parts[expert].package] += 1
        with np.errstate(over="ignore"):  # a result that is not finite is noticed later
            values["y"] = total.astype(x.dtype)

    def _functions(self, expert: int) -> Mapping[str, LoadedFunction]:
        with self._lock:
            if expert not in self._opened:
                self._opened[expert] = self._load(self._parts[expert])
            return self._opened[expert]
