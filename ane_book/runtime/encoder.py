"""`Encoder`: run an encoder's bundle; what `Embedder` and `Tagger` have in common.

A call of a program takes a fixed number of tokens, T; of the bundle's functions, the one with the
smallest T that holds all tokens is called.

Letters: C hidden size, T tokens of a call, n tokens, V vocabulary.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import ClassVar

from ane_book.bundle import Bundle, opened
from ane_book.device import memory_bytes
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.runtime.backends import Backend, choose_backend
from ane_book.runtime.bundle_text import load_tokenizer
from ane_book.runtime.shards import Calls, load_steps
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
        _check_memory(self.bundle)
        self.calls = Calls()
        layers = [part for part in manifest.packages if part.part != "head"]
        self._steps = load_steps(self.bundle, backend, layers, self.calls)
        self._widths = dict(sorted(manifest.functions.items(), key=lambda item: item[1]))
        self._embedding = np.asarray(self.bundle.embedding)  # (V, C), still mapped
        load_tokenizer(self._tokenizer, self.bundle.path / manifest.tokenizer.file)

    def _check_ids(self, ids: np.ndarray) -> None:
        """Raise InvalidInput for token ids outside the vocabulary."""
        vocabulary = len(self._embedding)
        wrong = ids[(ids < 0) | (ids >= vocabulary)]
        if wrong.size:
            raise InvalidInput(f"token id {wrong[0]} is outside the vocabulary of {vocabulary}")

    def _call(self, rows: np.ndarray, host: Callable[[int], dict[str, np.ndarray]]) -> np.ndarray:
        """Run rows (n, C) through all programs; returns float32 (n, C), or logits (n, labels).

        host: makes the inputs beside the hidden state, for T tokens.
        """
        n, dtype = len(rows), self.backend.dtype
        function, T = self._fitting(n)
        hidden = np.zeros((1, rows.shape[1], 1, T), dtype)
        hidden[0, :, 0, :n] = rows.T
        values = {name: array.astype(dtype) for name, array in host(T).items()}
        values["hidden"] = hidden
        with self._turn:
            for step in self._steps:
                step.run(function, values, n)
        outputs = values["logits" if self.bundle.manifest.tags else "hidden"]
        return outputs[0, :, 0].T[:n].astype(np.float32)

    def _fitting(self, n: int) -> tuple[str, int]:
        """The function with the smallest T that holds n columns, and that T."""
        return next((function, T) for function, T in self._widths.items() if n <= T)


def _check_memory(bundle: Bundle) -> None:
    """Raise InvalidBundle for a context whose mask this machine's memory cannot hold."""
    limit, T = memory_bytes(), bundle.manifest.context
    if limit is not None and limit < 8 * T * T:
        raise InvalidBundle(
            f"{bundle.path}: texts of {T:,} tokens take a mask of {8 * T * T / 1e9:,.1f} GB, and "
            f"{limit / 1e9:,.1f} GB of memory are here; convert it with a shorter context"
        )
