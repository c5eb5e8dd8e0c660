"""`PooledEncoder`: a column for each text; what `Embedder` and `Reranker` have in common.

A call of a program takes a fixed number of tokens, T. Texts share it: as many as fit go in side by
side, and the mask lets a token see those of its own text alone. So the device sees few shapes, all
with batch 1, and little padding, however long the texts are. A score under a mask of -40,000 counts
for e^-40,000, which is 0: the texts beside it change nothing in a text's column but the last bits,
which depend on the order of a sum.

Letters: C hidden size, E numbers of a result, T tokens of a call, n texts.
"""

from collections.abc import Sequence
from pathlib import Path

from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.host import pool, text_places
from ane_book.runtime.backends import Backend
from ane_book.runtime.encoder import Encoder
from ane_book.runtime.shards import load_steps
import numpy as np


class PooledEncoder(Encoder):
    """Runs texts, and pools the columns of each to one."""

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: Backend | str | None = None,
        force: bool = False,
    ):
        super().__init__(bundle, precision, backend, force)
        manifest, positions = self.bundle.manifest, self.bundle.positions
        assert manifest.vectors is not None, "what a bundle of this task has: `check_packages`"
        self._whole, self._says = manifest.vector_size, manifest.vectors
        self._positions = None if positions is None else positions.astype(np.float32)
        self._head = load_steps(self.bundle, self.backend, manifest.head, self.calls)

    def columns(
        self, token_ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> np.ndarray:
        """What each text becomes before the last step, float32 (n, E), from token ids: 1 to
        `max_tokens` for each text. types: of each token, 0 or 1; by default 0.

        Raises InvalidInput for other ids, and InvalidBundle where half precision is left.
        """
        ids = [self._valid(row, i) for i, row in enumerate(token_ids)]
        kinds = [np.asarray(row) for row in types] if types else [row * 0 for row in ids]
        result = np.empty((len(ids), self._whole), np.float32)
        for call in pack([len(row) for row in ids], self.max_tokens):
            rows = self._run([ids[i] for i in call], [kinds[i] for i in call])
            for i, row in zip(call, rows, strict=True):
                if not np.isfinite(row).all():
                    raise InvalidBundle(
                        f"{self.bundle.path}: text {i}, or one that shared its call, leaves the "
                        'range of fp16 (a vector of length nan); take precision "fp32"'
                    )
                result[i] = row
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

    def _run(self, texts: list[np.ndarray], types: list[np.ndarray]) -> np.ndarray:
        """Run texts in one call; returns (n, E)."""
        lengths, host = [len(ids) for ids in texts], self.bundle.manifest.host
        rows = self._embedding[np.concatenate(texts)].astype(np.float32) * host.embedding_scale
        if self._positions is not None:
            places = text_places(lengths, sum(lengths))
            if len(self._positions) > self.max_tokens:  # rows of a second type
                places = places + self.max_tokens * np.concatenate(types)
            rows += self._positions[places]
        hidden = self._call(rows, lambda T: self._given(lengths, T))
        texts_columns = np.split(hidden, np.cumsum(lengths)[:-1])
        pooled = np.stack([pool(own.T, self._says.pooling) for own in texts_columns])  # (n, C)
        return self._last(pooled) if self._head else pooled

    def _given(self, lengths: list[int], T: int) -> dict[str, np.ndarray]:
        """The host's inputs of a call."""
        host = self.bundle.manifest.host
        tables = host.tables(text_places(lengths, T), self.max_tokens) if host.rotary else {}
        return tables | host.text_masks(lengths, T, causal=self._says.causal)

    def _last(self, pooled: np.ndarray) -> np.ndarray:
        """Run the head on texts' columns (n, C); returns (n, E)."""
        n, C = pooled.shape
        function, T = self._fitting(n)
        hidden = np.zeros((1, C, 1, T), self.backend.dtype)
        hidden[0, :, 0, :n] = pooled.T
        values = {"hidden": hidden}
        with self._turn:
            for step in self._head:
                step.run(function, values, n)
        found = values["vector" if self._says.score is None else "score"]
        return found[0, :, 0, :n].T.astype(np.float32)


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
