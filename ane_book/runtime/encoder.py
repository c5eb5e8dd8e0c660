"""`Encoder`: run an encoder's bundle; what `Embedder` and `Tagger` have in common.

A call of a program takes a fixed number of tokens, T; of the bundle's functions, the one with the
smallest T that holds all tokens is called.

Letters: C hidden size, T tokens of a call, n tokens, V vocabulary.
"""

from pathlib import Path
from threading import Lock
from typing import ClassVar

from ane_book.bundle import Bundle, opened
from ane_book.runtime.backends import Backend, choose_backend
from ane_book.runtime.bundle_text import load_tokenizer
from ane_book.runtime.shards import Calls, Steps, check_memory, load_steps
from ane_book.text.process import TextProcess
import numpy as np


class Encoder:
    """Opens a bundle of its task, and runs it.

    bundle: a `Bundle`, or its folder. precision, backend, force: as a `Session` takes them.
    Threads may share one; they take turns. `calls` counts those of each program.

    Raises InvalidBundle, InvalidPackage, InvalidInput or BackendUnavailable.
    """

    task: ClassVar[str]

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: Backend | str | None = None,
        force: bool = False,
    ):
        self.bundle = opened(bundle, self.task, force)
        self._tokenizer = TextProcess()  # it starts while the packages are opened
        self.backend = backend = choose_backend(backend, precision)
        self._turn = Lock()
        manifest = self.bundle.manifest
        self.max_tokens = manifest.context
        check_memory(manifest, 8 * manifest.context**2)  # its mask
        self.calls = Calls()
        layers = [part for part in manifest.packages if part.part != "head"]
        self._steps = load_steps(self.bundle, backend, layers, self.calls)
        self._head = load_steps(self.bundle, backend, manifest.head, self.calls)
        self._functions = dict(sorted((T, name) for name, T in manifest.functions.items()))
        self._embedding = np.asarray(self.bundle.embedding)  # (V, C), still mapped
        load_tokenizer(self._tokenizer, self.bundle.path / manifest.tokenizer.file)

    def _width(self, n: int) -> int:
        """The smallest T of a function that holds n tokens."""
        return next(T for T in self._functions if n <= T)

    def _call(
        self, steps: Steps, rows: np.ndarray, output: str, inputs: dict[str, np.ndarray]
    ) -> np.ndarray:
        """Run rows (n, C) through programs; returns their last output, float32 (n, its channels).

        inputs: what the host gives beside the hidden state, for T tokens.
        """
        n, dtype = len(rows), self.backend.dtype
        T = self._width(n)
        hidden = np.zeros((1, rows.shape[1], 1, T), dtype)
        hidden[0, :, 0, :n] = rows.T
        values = {name: array.astype(dtype) for name, array in inputs.items()}
        values["hidden"] = hidden
        with self._turn:
            for step in steps:
                step.run(self._functions[T], values, n)
        return values[output][0, :, 0].T[:n].astype(np.float32)
