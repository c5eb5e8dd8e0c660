"""`Embedder`: turn texts into vectors with an encoder's bundle.

A call of a program takes a fixed number of tokens, T. Texts share it: as many as fit go in side by
side, and the mask lets a token see those of its own text alone. So the device sees few shapes, all
with batch 1, and little padding, however long the texts are. A score under a mask of -40,000 counts
for e^-40,000, which is 0: the texts beside it change nothing in a text's vector but the last bits,
which depend on the order of a sum.

Letters: C hidden size, T tokens of a call, n texts.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
import warnings

from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, InvalidInput, InvalidType, PromptTooLong, TextCut
from ane_book.host import text_mask
from ane_book.runtime.backends import Backend
from ane_book.runtime.encoder import Encoder
from ane_book.text.process import check_text
import numpy as np

__all__ = ["Embedder", "pack"]


class Embedder(Encoder):
    """Sentence vectors from a bundle."""

    task = "embedding"

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: Backend | str | None = None,
        force: bool = False,
    ):
        super().__init__(bundle, precision, backend, force)
        manifest = self.bundle.manifest
        self.size = manifest.embedding.shape[1]
        self._positions = self.bundle.positions.astype(np.float32)  # (max_tokens, C)
        assert manifest.vectors is not None, "what a bundle of this task has: `check_packages`"
        self._pooling = manifest.vectors.pooling

    def embed(self, texts: Sequence[str], cut: bool = True) -> np.ndarray:
        """A vector for each text, float32 (n, C), each of length 1.

        Their products are their cosines: `vectors @ vectors.T`. A vector is made of those of its
        text's tokens, as the model was trained for: their mean, or the first. An empty text has a
        vector; a list of none gives (0, C).

        cut: shorten a text of more than `max_tokens` tokens, special tokens included, as
        sentence-transformers does, and warn with one TextCut for the list. Without it such a text
        raises PromptTooLong.

        Raises InvalidType (a TypeError too) for anything but a list of str, and InvalidInput for a
        str that is not valid text.
        """
        texts = _checked(texts)
        read = [self._read(text, f"text {i}", cut) for i, text in enumerate(texts)]
        long = [self._cut(f"text {i}", n) for i, (_, n) in enumerate(read) if n > self.max_tokens]
        if long:
            more = f"; so are {len(long) - 1:,} more of {len(texts):,} texts" * (len(long) > 1)
            warnings.warn(TextCut(long[0] + more), stacklevel=2)
        return self.vectors([ids for ids, _ in read])

    def encode(self, text: str, what: str = "the text", cut: bool = True) -> list[int]:
        """A text's token ids; `what` is its name in an error or a warning.

        cut: to `max_tokens`, with a TextCut; without it a longer text raises PromptTooLong.
        """
        ids, tokens = self._read(text, what, cut)
        if tokens > self.max_tokens:
            warnings.warn(TextCut(self._cut(what, tokens)), stacklevel=2)
        return ids

    def _read(self, text: str, what: str, cut: bool) -> tuple[list[int], int]:
        """A text's token ids, at most `max_tokens`, and how many there are without the cut."""
        check_text(text, what)
        ids = self._tokenizer.encode(text, special=True)
        tokens = len(ids)
        if tokens > self.max_tokens:
            if not cut:
                raise PromptTooLong(f"{what} has {tokens:,} tokens; {self.max_tokens} at most")
            ids = self._tokenizer.encode(text, special=True, most=self.max_tokens)
        return ids, tokens

    def _cut(self, what: str, tokens: int) -> str:
        return f"{what} is cut to the first {self.max_tokens} of its {tokens:,} tokens"

    def vectors(self, token_ids: Sequence[Sequence[int]]) -> np.ndarray:
        """The same as `embed`, from token ids: 1 to `max_tokens` for each text."""
        ids = [self._valid(row, i) for i, row in enumerate(token_ids)]
        result = np.empty((len(ids), self.size), np.float32)
        for call in pack([len(row) for row in ids], self.max_tokens):
            rows = self._run([ids[i] for i in call])
            for i, row in zip(call, rows, strict=True):
                vector = row[0] if self._pooling == "cls" else row.mean(axis=0)
                length = np.linalg.norm(vector)
                if not 0 < length < np.inf:
                    raise InvalidBundle(
                        f"{self.bundle.path}: text {i}, or one that shared its call, leaves the "
                        f'range of fp16 (a vector of length {length}); take precision "fp32"'
                    )
                result[i] = vector / length
        return result

    def _valid(self, row: Sequence[int], i: int) -> np.ndarray:
        """Check a text's token ids against vocabulary and longest call; returns an array."""
        ids = np.asarray(row)
        if not ids.size:
            raise InvalidInput(f"text {i} has no tokens")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidInput(f"text {i}: token ids are whole numbers in a row")
        if ids.size > self.max_tokens:
            raise InvalidInput(f"text {i} has {ids.size} tokens, more than {self.max_tokens}")
        self._check_ids(ids)
        return ids

    def _run(self, texts: list[np.ndarray]) -> list[np.ndarray]:
        """Run texts in one call; returns the vectors of each one's tokens, float32 (tokens, C)."""
        lengths = [len(ids) for ids in texts]
        rows = [self._embedding[ids].astype(np.float32) for ids in texts]
        positions = np.concatenate([self._positions[:n] for n in lengths])
        columns = self._call(
            np.concatenate(rows) + positions, lambda T: {"mask": text_mask(lengths, T)}
        )
        return np.split(columns, np.cumsum(lengths)[:-1])


def _checked(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidType(f"embed takes a list of str, not {type(texts).__name__}: embed([text])")
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
