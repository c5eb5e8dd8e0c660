"""`Encoder`, what `Embedder` and `Tagger` have in common, and `Embedder`: texts into vectors.

    embedder = ane_book.load("all-minilm-l6-v2")
    vectors = embedder.embed(["A cat.", "A kitten."])    # float32 (2, 384), of length 1

A call of a program takes a fixed number of tokens, T; of the bundle's functions, the one with the
smallest T that holds all tokens is called. Texts share a call: as many as fit go in side by
side, and the mask lets a token see those of its own text alone. So the device sees few shapes, all
with batch 1, and little padding, however long the texts are. A score under a mask of -40,000 counts
for e^-40,000, which is 0: the texts beside it change nothing in a text's column but the last bits,
which depend on the order of a sum.

Letters: C hidden size, E numbers of a vector, T tokens of a call, n texts or tokens, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import ClassVar
import warnings

from ane_book.bundle import Bundle, opened
from ane_book.bundle.parts import Vectors
from ane_book.errors import InvalidBundle, InvalidInput, InvalidType, PromptTooLong, TextCut
from ane_book.host import pool, text_places
from ane_book.runtime.backends import Backend, choose_backend
from ane_book.runtime.bundle_text import check_ids, described, load_tokenizer
from ane_book.runtime.model_runner import check_memory
from ane_book.runtime.shards import Calls, Steps, load_steps
from ane_book.text.process import TextProcess, check_text
import numpy as np


class Encoder:
    """Opens a bundle of its task, and runs it.

    bundle: a `Bundle`, or its folder. precision, backend, force: as a `Session` takes them.
    Threads may share one; they take turns. `calls` counts those of each program.

    Raises InvalidBundle, InvalidPackage, InvalidInput or BackendUnavailable.
    """

    task: ClassVar[str]
    __repr__ = described

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


class Embedder(Encoder):
    """Sentence vectors from a bundle."""

    task = "embedding"

    @property
    def _says(self) -> Vectors:
        vectors = self.bundle.manifest.vectors
        assert vectors is not None, "what a bundle of this task has: `check_packages`"
        return vectors

    @property
    def size(self) -> int:
        """Numbers of a vector where nothing else is asked for."""
        return self._says.dimensions or self.bundle.manifest.vector_size

    @property
    def prompts(self) -> dict[str, str]:
        """What the model's texts may have before them, by name."""
        return self._says.prompts

    def embed(
        self,
        texts: Sequence[str],
        cut: bool = True,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """A vector for each text, float32 (n, E), each of length 1.

        Their products are their cosines: `vectors @ vectors.T`. A vector is made of those of its
        text's tokens, as the model was trained for: their mean, the first or the last. An empty
        text has a vector; a list of none gives (0, E).

        cut: shorten a text of more than `max_tokens` tokens, special tokens included, as
        sentence-transformers does, and warn with one TextCut for the list. Without it such a text
        raises PromptTooLong.

        prompt: the name of one of `prompts`, or a text, that stands before each text; by default
        the model's own default, "" for none. dimensions: cut vectors to so many numbers, and scale
        them to length 1 again, which is for models that were trained for it.

        Raises InvalidType (a TypeError too) for anything but a list of str, and InvalidInput for a
        str that is not valid text, an unknown prompt, or more dimensions than there are.
        """
        texts, before = _checked(texts), self.prompt(prompt)
        read = [self._read(before + text, f"text {i}", cut) for i, text in enumerate(texts)]
        if notes := [note for _, note in read if note]:
            more = f"; so are {len(notes) - 1:,} more of {len(texts):,} texts" * (len(notes) > 1)
            warnings.warn(TextCut(notes[0] + more), stacklevel=2)
        return self.vectors([ids for ids, _ in read], dimensions)

    def prompt(self, asked: str | None = None) -> str:
        """The text of the prompt that is asked for, by its name or as it is; raises InvalidInput
        for one word that is no name."""
        name = self._says.default_prompt if asked is None else asked
        if not name or name in self.prompts:
            return self.prompts[name] if name else ""
        if name.replace("-", "_").isidentifier():
            known = ", ".join(self.prompts) or "none"
            raise InvalidInput(
                f"no prompt of this model is called {name!r}; there are: {known}. A text of your "
                "own is taken as it is if it is more than a word, such as 'query: '"
            )
        return name

    def encode(
        self, text: str, what: str = "the text", cut: bool = True, prompt: str | None = None
    ) -> list[int]:
        """A text's token ids, with a prompt as `embed` takes it; `what` is the text's name in an
        error or a warning.

        cut: to `max_tokens`, with a TextCut; without it a longer text raises PromptTooLong.
        """
        ids, note = self._read(self.prompt(prompt) + text, what, cut)
        if note:
            warnings.warn(TextCut(note), stacklevel=2)
        return ids

    def _read(self, text: str, what: str, cut: bool) -> tuple[list[int], str]:
        """A text's token ids, at most `max_tokens`, and a note where that cuts it."""
        check_text(text, what)
        ids, most = self._tokenizer.encode(text, special=True), self.max_tokens
        if len(ids) <= most:
            return ids, ""
        if not cut:
            raise PromptTooLong(f"{what} has {len(ids):,} tokens; {most} at most")
        note = f"{what} is cut to the first {most} of its {len(ids):,} tokens"
        return self._tokenizer.encode(text, special=True, most=most), note

    def vectors(
        self, token_ids: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> np.ndarray:
        """The same as `embed`, from token ids: 1 to `max_tokens` for each text."""
        whole = self.bundle.manifest.vector_size
        size = self.size if dimensions is None else dimensions
        if not 0 < size <= whole:
            raise InvalidInput(f"dimensions: 1 to {whole}, not {size}")
        ids = [self._valid(row, i) for i, row in enumerate(token_ids)]
        columns = np.empty((len(ids), whole), np.float32)
        for call in pack([len(row) for row in ids], self.max_tokens):
            columns[call] = self._run([ids[i] for i in call])
        cut = columns[:, :size]
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        for i in np.flatnonzero(~((lengths[:, 0] > 0) & np.isfinite(columns).all(axis=1))):
            raise InvalidBundle(
                f"{self.bundle.path}: text {i}, or one that shared its call, leaves the range of "
                f'fp16 (a vector of length {lengths[i, 0]}); take precision "fp32"'
            )
        return cut / lengths

    def _valid(self, row: Sequence[int], i: int) -> np.ndarray:
        """Check a text's token ids against vocabulary and longest call; returns an array."""
        ids = np.asarray(row)
        if not ids.size:
            raise InvalidInput(f"text {i} has no tokens")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidInput(f"text {i}: token ids are whole numbers in a row")
        if ids.size > self.max_tokens:
            raise InvalidInput(f"text {i} has {ids.size} tokens, more than {self.max_tokens}")
        check_ids(ids, len(self._embedding))
        return ids

    def _run(self, texts: list[np.ndarray]) -> np.ndarray:
        """Run texts in one call; returns (n, E)."""
        lengths, host = [len(ids) for ids in texts], self.bundle.manifest.host
        rows = self._embedding[np.concatenate(texts)].astype(np.float32) * host.embedding_scale
        if self.bundle.positions is not None:
            rows += self.bundle.positions[text_places(lengths, sum(lengths))]
        T = self._width(len(rows))
        tables = host.tables(text_places(lengths, T), self.max_tokens)
        masks = host.text_masks(lengths, T, causal=self._says.causal)
        hidden = self._call(self._steps, rows, "hidden", tables | masks)
        texts_columns = np.split(hidden, np.cumsum(lengths)[:-1])
        pooled = np.stack([pool(own.T, self._says.pooling) for own in texts_columns])  # (n, C)
        return self._call(self._head, pooled, "vector", {}) if self._head else pooled


def _checked(texts: Iterable[str]) -> list[str]:
    """Texts as a list; raises InvalidType for anything but str."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise InvalidType(f"embed takes a list of str, not {kind}: embed([text])")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidType(f"text {i} is {type(text).__name__}, not str")
    return texts


def pack(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Divide texts among calls of at most `most` tokens; returns the numbers of each call's texts.

    No text may be longer than a call. The longest are placed first, each where it leaves the least
    room (best fit decreasing).
    """
    calls: list[list[int]] = []
    by_room: list[list[list[int]]] = [[] for _ in range(most + 1)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = next((room for room in range(lengths[i], most) if by_room[room]), most)
        if room == most:
            calls.append([])
            by_room[most].append(calls[-1])
        call = by_room[room].pop()
        call.append(i)
        by_room[room - lengths[i]].append(call)
    return calls
