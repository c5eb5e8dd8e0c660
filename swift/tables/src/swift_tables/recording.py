"""`RecordingBackend`: write down what a session passes to its programs and gets back.

A host in another language replays it without any program: `RecordedPredictor` of the Swift package
checks that it passes the same inputs, and gives the same outputs. So an app's tests need neither
Core ML nor Python.

    recording = RecordingBackend(MILBackend(), "folder")
    Session(bundle, backend=recording).generate("Hello", max_tokens=8)

The folder holds `calls.jsonl`, a line for each call in order with its package, its function, and
the place of each array in `arrays.bin`.
"""

import json
from pathlib import Path
from typing import Any

from ane_book.errors import InvalidInput
from ane_book.runtime.backends import Backend, LoadedFunction
import numpy as np


class RecordingBackend:
    """Runs functions on another backend, and writes down every call.

    folder: made, with its parents; raises InvalidInput where there is something already.
    """

    def __init__(self, backend: Backend, folder: str | Path):
        self._backend, self._folder = backend, Path(folder)
        self.name, self.dtype = backend.name, backend.dtype
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise InvalidInput(f"{folder} holds something already; name another folder")
        for name in ("calls.jsonl", "arrays.bin"):
            (self._folder / name).touch()

    def load(self, package: Path, function: str) -> LoadedFunction:
        loaded = self._backend.load(package, function)
        return _RecordedFunction(self, Path(package).name, function, loaded)

    def write(self, package: str, function: str, **arrays: dict[str, np.ndarray]) -> None:
        """Add a call with its arrays, by `inputs` and `outputs` and their names."""
        line: dict[str, Any] = {"package": package, "function": function}
        with (self._folder / "arrays.bin").open("ab") as file:
            for kind, named in arrays.items():
                line[kind] = {}
                for name, array in named.items():
                    line[kind][name] = {"start": file.tell(), "bytes": array.nbytes}
                    file.write(np.ascontiguousarray(array).tobytes())
        with (self._folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


class _RecordedFunction:
    """A function whose calls are written down."""

    def __init__(self, record: RecordingBackend, package: str, name: str, loaded: LoadedFunction):
        self._record, self._package, self._name, self._loaded = record, package, name, loaded
        self.inputs, self.outputs, self.states = loaded.inputs, loaded.outputs, loaded.states

    def predict(
        self, inputs: dict[str, np.ndarray], state: Any = None, *, used: int = 0
    ) -> dict[str, np.ndarray]:
        given = {name: array.copy() for name, array in inputs.items()}
        outputs = self._loaded.predict(inputs, state)  # all columns, whichever are used
        self._record.write(self._package, self._name, inputs=given, outputs=outputs)
        return outputs

    def make_state(self) -> Any:
        return self._loaded.make_state()
