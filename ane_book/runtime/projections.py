"""A layer whose matrices are programs of their own; all between them is done here, on the host.

Seven calls a layer, as in the first complete language model on the engine (maderix/ANE, pull
request 26): q, k, v, o, gate, up, down. Norms, rotary embedding, attention, SwiGLU, residuals and
the cache are numpy, in single precision; what goes into a program has the backend's dtype.

Letters: C hidden size, D head size, R rotated dimensions, H query heads, K key/value heads,
G = H / K, T tokens of a call, S slots of the cache, P of them filled.
"""

from ane_book.bundle.manifest import Manifest
from ane_book.runtime.backends import LoadedFunction
import numpy as np

__all__ = ["HostLayer", "rms_norm"]


def rms_norm(x: np.ndarray, weight: np.ndarray | float, axis: int, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight along an axis, float32; weight broadcasts over x."""
    mean = np.mean(np.square(x), axis=axis, keepdims=True)
    return x / np.sqrt(mean + np.float32(eps)) * weight


class HostLayer:
    """One layer: its programs by projection and function, its norms, its part of the cache.

    norms (2, C), before attention and before the feed-forward; qk_norms (2, D), of queries and
    keys, or None; float32.
    """

    def __init__(
        self,
        programs: dict[str, dict[str, LoadedFunction]],
        manifest: Manifest,
        norms: np.ndarray,
        qk_norms: np.ndarray | None,
        dtype: np.dtype,
    ):
        self._programs, self._between, self._dtype = programs, manifest.between, dtype
        self._norms, self._qk_norms = norms[..., None], qk_norms  # (2, C, 1)
        self._eps, self._rotary = manifest.between.norm_epsilon, manifest.host.rotary["rope"]
        self._shape = (manifest.between.kv_heads, manifest.context, self._rotary.head_dim)
        self.clear()

    def clear(self) -> None:
        """An empty cache."""
        self._keys = np.zeros(self._shape, self._dtype)  # (K, S, D)
        self._values = np.zeros(self._shape, self._dtype)

    def run(self, function: str, inputs: dict[str, np.ndarray], tokens: int) -> np.ndarray:
        """The hidden state after this layer, (1, C, 1, T) float32; the cache grows by `tokens`."""

        def call(name: str, x: np.ndarray) -> np.ndarray:  # (inputs, T) -> (outputs, T)
            hidden = np.ascontiguousarray(x[None, :, None], self._dtype)
            return self._programs[name][function].predict({"hidden": hidden})["out"][0, :, 0]

        hidden = inputs["hidden"][0, :, 0].astype(np.float32)  # (1, C, 1, T) -> (C, T)
        x = rms_norm(hidden, self._norms[0], 0, self._eps)
        q, k, v = (self._heads(call(name, x)) for name in "qkv")
        hidden = hidden + call("o", self._attend(q, k, v, inputs, tokens))
        x = rms_norm(hidden, self._norms[1], 0, self._eps)
        gate, up = (call(name, x).astype(np.float32) for name in ("gate", "up"))
        with np.errstate(over="ignore"):  # exp of a large number: its share is 0
            gated = gate / (1 + np.exp(-gate)) * up
        return (hidden + call("down", gated))[None, :, None]

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """(heads * D, T) -> (heads, T, D) float32."""
        rows = x.reshape(-1, self._rotary.head_dim, x.shape[1])
        return rows.transpose(0, 2, 1).astype(np.float32)

    def _attend(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, inputs: dict, tokens: int
    ) -> np.ndarray:
        """q (H, T, D), k and v (K, T, D) -> (H * D, T); only the filled slots are looked at."""
        P, T = int(inputs["position"][0]), q.shape[1]
        q, k = (self._norm_and_rotate(x, i, inputs) for i, x in enumerate((q, k)))
        keys, values = (
            np.concatenate([cache[:, :P], new], axis=1, dtype=np.float32)  # (K, P + T, D)
            for cache, new in ((self._keys, k), (self._values, v))
        )
        self._keys[:, P : P + tokens] = k[:, :tokens]
        self._values[:, P : P + tokens] = v[:, :tokens]
        # The scale 1/sqrt(D) came in with the rotary tables (`ane_book.rope`).
        q = q.reshape(len(k), -1, T, q.shape[2])  # (K, G, T, D)
        scores = q @ keys[:, None].swapaxes(2, 3)  # (K, G, T, P + T)
        mask = inputs["mask"][0, 0]  # (T, S + T): of the slots, what a window leaves
        scores += np.concatenate([mask[:, :P], mask[:, -T:]], axis=1)
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        weights /= weights.sum(axis=3, keepdims=True)
        y = weights @ values[:, None]  # (K, G, T, D)
        return y.transpose(0, 1, 3, 2).reshape(-1, T)  # (H * D, T)

    def _norm_and_rotate(self, x: np.ndarray, which: int, inputs: dict) -> np.ndarray:
        """Queries (which = 0) or keys (1), (heads, T, D), ready for attention."""
        weight = 1.0 if self._qk_norms is None else self._qk_norms[which]
        # A rotation keeps the mean square, so where the norm comes after it, only its weight does.
        late = self._between.norm_after_rotation
        if self._qk_norms is not None:
            x = rms_norm(x, 1.0 if late else weight, 2, self._eps)
        half = self._rotary.rotary_dim // 2
        swapped = np.concatenate([x[..., half : 2 * half], x[..., :half], x[..., 2 * half :]], 2)
        y = x * inputs["rope_cos"][0] + swapped * inputs["rope_sin"][0]
        return y * weight if late else y
