"""The inputs that the host gives to a decoder's layers: hidden state, masks, rotary tables, and
what each layer gets of its own.

Each function of a bundle has its input arrays made once: rotary tables are views into one table for
the whole context, and a mask changes only where the position moved.

Letters: C hidden size, D head size, T tokens of a call, S slots of the cache, V vocabulary.
"""

from functools import cached_property

from ane_book.bundle import Bundle
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import FunctionSpec
from ane_book.host import MASKED, causal_mask, per_layer_columns
from ane_book.layout import PER_LAYER, Layout
import numpy as np


class _Mask:
    """A mask as the layout has it, updated in place as the position moves; `_rows` is a view of it,
    (1, 1, T, S + T)."""

    def __init__(
        self, tokens: int, context: int, window: int | None, layout: Layout, dtype: np.dtype
    ):
        rows = causal_mask(0, tokens, context).astype(dtype)
        self.array = np.ascontiguousarray(layout.turned(rows))
        self._rows = layout.rows(self.array)
        self._tokens, self._context = tokens, context
        self._window = window if window and window < context + tokens else None
        self._visible = 0  # slots that it lets through

    def move(self, position: int) -> None:
        """Update the mask for a call whose first token goes to slot `position`."""
        if self._window:
            self._rows[:] = causal_mask(position, self._tokens, self._context, self._window)
            return
        low, high = sorted((self._visible, position))
        self._rows[..., low:high] = 0.0 if position > self._visible else MASKED
        self._visible = position


class _Call:
    """The input arrays of one function, which takes T tokens."""

    def __init__(self, function: FunctionSpec, manifest: Manifest, dtype: np.dtype):
        self.tokens, slots = function.tokens, function.slots
        tokens = function.tokens
        assert slots is not None, "functions of a decoder's first package have a cache"
        self._hidden = np.zeros((1, manifest.embedding.shape[1], 1, tokens), dtype)
        self._masks = {
            name: _Mask(tokens, slots, window, manifest.layout, dtype)
            for name, window in manifest.host.masks.items()
        }
        self._position, self._layout = np.zeros(1, np.int32), manifest.layout
        self._real = np.zeros((1, 1, 1, tokens), dtype)
        self._layers = manifest.shards[-1].span.stop

    def hidden(self, columns: np.ndarray) -> np.ndarray:
        """The hidden state (1, C, 1, T) of columns (C, n), n <= T.

        Columns beyond n are padding: their output is ignored, and what they write to the cache is
        masked until a real token overwrites it.
        """
        n = columns.shape[1]
        self._hidden[0, :, 0, :n], self._hidden[..., n:] = columns, 0
        return self._hidden

    def per_layer(self, rows: np.ndarray) -> np.ndarray:
        """What all layers get of their own (L, P, 1, T), of n tokens' rows (n, L * P), n <= T."""
        columns = per_layer_columns(rows, self._layers)  # (L, P, 1, n)
        padding = [(0, 0)] * 3 + [(0, self.tokens - len(rows))]
        return np.pad(columns.astype(self._hidden.dtype), padding)

    def real(self, n: int) -> np.ndarray:
        """1 for the n tokens of a call and 0 for its padding, (1, 1, 1, T)."""
        self._real[..., :n], self._real[..., n:] = 1, 0
        return self._real

    def around(self, position: int, tables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All inputs but the hidden state, where the first token goes to slot `position`."""
        self._position[0] = position
        for mask in self._masks.values():
            mask.move(position)
        window = self._layout.at(position, position + self.tokens)
        return {
            "position": self._position,
            **{name: mask.array for name, mask in self._masks.items()},
            **{name: np.ascontiguousarray(table[window]) for name, table in tables.items()},
        }


class HostInputs:
    """Makes the host's inputs for every function of a bundle's layers."""

    def __init__(self, bundle: Bundle, dtype: np.dtype):
        manifest = bundle.manifest
        self._bundle, self._scale = bundle, np.float32(manifest.host.embedding_scale)
        tables = manifest.host.tables(np.arange(manifest.context), manifest.context)
        turned = {name: manifest.layout.turned(table) for name, table in tables.items()}
        self._tables = {n: np.ascontiguousarray(table, dtype) for n, table in turned.items()}
        self._calls = {
            name: _Call(function, manifest, dtype)
            for name, function in manifest.packages[0].functions.items()
        }
        self._has_memory = manifest.has_memory

    def of(self, function: str, ids: np.ndarray, position: int) -> dict[str, np.ndarray]:
        """All inputs of a function for tokens (n,) that go to slots `position` and after."""
        call = self._calls[function]
        inputs = {"hidden": call.hidden(self.columns(ids)), **self.around(function, position)}
        if self._bundle.per_layer is not None:
            inputs[PER_LAYER] = call.per_layer(self._bundle.per_layer[ids])
        return inputs | ({"real": call.real(len(ids))} if self._has_memory else {})

    def columns(self, ids: np.ndarray) -> np.ndarray:
        """The hidden states (C, n) of tokens (n,) before the first layer, float32."""
        return self._embedding[ids].T * self._scale  # (n, C) -> (C, n)

    def around(self, function: str, position: int) -> dict[str, np.ndarray]:
        """All inputs of a function but the hidden state."""
        return self._calls[function].around(position, self._tables)

    def tokens(self, function: str) -> int:
        """T of a function."""
        return self._calls[function].tokens

    @cached_property
    def _embedding(self) -> np.ndarray:
        return np.asarray(self._bundle.embedding)  # (V, C), still mapped, less overhead
