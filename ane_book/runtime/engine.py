"""The calls that a session makes: shards in order, then the head.

Of a bundle in projections, what stands for a shard is a layer of `ane_book.runtime.projections`.

Each function of a bundle has its input arrays made once: rotary tables are views into one table for
the whole context, and a mask changes only where the position moved.

Letters: C hidden size, D head size, K key/value heads, T tokens of a call, S slots of the cache,
V vocabulary; n layers of a shard.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ane_book.bundle import Bundle, Manifest, projections
from ane_book.bundle import Shard as ShardRecord
from ane_book.device import memory_bytes
from ane_book.errors import InvalidBundle, InvalidInput, InvalidPackage, UnsupportedOp
from ane_book.host import MASKED, causal_mask
from ane_book.models import DecoderConfig
from ane_book.runtime.backends import Backend, LoadedFunction
from ane_book.runtime.projections import HostLayer, rms_norm
import numpy as np

__all__ = ["Engine"]

Shapes = dict[str, tuple[int, ...]]


def cache_shape(manifest: Manifest, shard: ShardRecord) -> tuple[int, int, int, int]:
    """(n, K, S, D) of a shard's keys, and of its values."""
    config, (first, last) = manifest.config, shard.layers
    return last - first, config.num_kv_heads, manifest.recipe.context, config.head_dim


def shard_types(manifest: Manifest, shard: ShardRecord) -> Callable[[int], dict[str, Shapes]]:
    """What a shard's function of T tokens takes, keeps and gives, by the contract of the bundle."""
    config, recipe = manifest.config, manifest.recipe
    if shard.projection is not None:
        outputs, inputs = projections(config)[shard.projection]
        return lambda T: {
            "inputs": {"hidden": (1, inputs, 1, T)},
            "states": {},
            "outputs": {"out": (1, outputs, 1, T)},
        }
    C, D, S = config.hidden_size, config.head_dim, recipe.context
    n, K, _, _ = slots = cache_shape(manifest, shard)
    cache = {"keys": slots, "values": slots}

    def types(T: int) -> dict[str, Shapes]:
        inputs = {
            "hidden": (1, C, 1, T),
            "rope_cos": (1, 1, T, D),
            "rope_sin": (1, 1, T, D),
            "mask": (1, 1, T, S + T),
        }
        outputs = {"hidden_out": (1, C, 1, T)}
        if recipe.kv == "state":
            return {"inputs": inputs | {"position": (1,)}, "states": cache, "outputs": outputs}
        rows = {"new_keys": (n, K, T, D), "new_values": (n, K, T, D)}
        return {"inputs": inputs | cache, "states": {}, "outputs": outputs | rows}

    return types


def head_types(manifest: Manifest, package: str) -> Callable[[int], dict[str, Shapes]]:
    """The same for a package of the head."""
    parts = enumerate(zip(manifest.head.packages, manifest.head.splits, strict=True))
    splits = {i: rows for i, (name, rows) in parts if name == package}

    def types(T: int) -> dict[str, Shapes]:
        outputs: Shapes = {f"logits_{i}": (1, rows, 1, T) for i, rows in splits.items()}
        if manifest.recipe.argmax_output:
            outputs = {"token": (1, T)}
        inputs = {"hidden": (1, manifest.config.hidden_size, 1, T)}
        return {"inputs": inputs, "states": {}, "outputs": outputs}

    return types


def _load(
    bundle: Bundle, backend: Backend, package: str, types: Callable[[int], dict[str, Shapes]]
) -> dict[str, LoadedFunction]:
    """Both functions of a package, held to the shapes that the manifest promises."""
    functions = {}
    for name, width in bundle.recipe.functions.items():
        where = f"{bundle.path / package}, function {name!r}"
        try:
            functions[name] = backend.load(bundle.path / package, name)
        except (InvalidInput, InvalidPackage, UnsupportedOp) as error:
            mend = f"`ane-book inspect --verify {bundle.path}` says what has changed"
            raise InvalidBundle(f"{where}: {error}; {mend}") from None
        for part, wanted in types(width).items():
            found = {key: t.shape for key, t in getattr(functions[name], part).items()}
            for key in sorted(wanted.keys() | found.keys()):
                if wanted.get(key) != found.get(key):
                    raise InvalidBundle(
                        f"{where}: {part[:-1]} {key!r} has shape {found.get(key, 'none')}, "
                        f"manifest.json says {wanted.get(key, 'none')}; convert the model again"
                    )
    return functions


def _check_memory(manifest: Manifest) -> None:
    """Refuse a cache, masks and rotary tables that this machine cannot hold, before any is made."""
    config, S, T = manifest.config, manifest.recipe.context, manifest.recipe.prefill
    row = config.num_layers * config.num_kv_heads * config.head_dim
    needed = 2 * 2 * S * row + 4 * T * (S + T) + 2 * 8 * S * config.head_dim
    limit = memory_bytes()
    if limit is not None and needed > limit:
        raise InvalidBundle(
            f"{manifest.name}: a context of {S:,} tokens takes {needed / 1e9:,.1f} GB, and "
            f"{limit / 1e9:,.1f} GB of memory are here; convert it with a shorter one"
        )


class _Call:
    """The inputs that all shards share in one function, T tokens wide."""

    def __init__(self, tokens: int, context: int, config: DecoderConfig, dtype: np.dtype):
        self.tokens = tokens
        self._hidden = np.zeros((1, config.hidden_size, 1, tokens), dtype)
        self._mask = causal_mask(0, tokens, context).astype(dtype)  # (1, 1, T, S+T)
        self._position = np.zeros(1, np.int32)
        window = config.sliding_window
        self._window = window if window and window < context + tokens else None
        self._visible = 0  # slots that the mask lets through

    def inputs(
        self, rows: np.ndarray, position: int, tables: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The inputs for embedding rows (n, C), n <= T, that go to slots `position` and after.

        Rows beyond n are padding: their output is ignored, and what they write to the cache is
        masked until a real token overwrites it.
        """
        self._hidden[0, :, 0, : len(rows)] = rows.T  # (n, C) -> (C, n)
        self._hidden[..., len(rows) :] = 0
        if self._window:
            context = self._mask.shape[3] - self.tokens
            self._mask[:] = causal_mask(position, self.tokens, context, self._window)
        else:
            low, high = sorted((self._visible, position))
            self._mask[..., low:high] = 0.0 if position > self._visible else MASKED
            self._visible = position
        self._position[0] = position
        window = slice(position, position + self.tokens)
        return {
            "hidden": self._hidden,
            "mask": self._mask,
            "position": self._position,
            **{name: table[:, :, window] for name, table in tables.items()},
        }


class _Shard:
    """A range of layers with its part of the cache, kept in the program's states or by the host."""

    def __init__(self, functions: dict[str, LoadedFunction], shape: tuple[int, ...] | None, dtype):
        self._functions = functions
        self._shape, self._dtype = shape, dtype  # (n, K, S, D) of the host's cache, or None
        self.clear()

    def clear(self) -> None:
        """An empty cache."""
        self._state: Any = None
        self._cache: dict[str, np.ndarray] = {}
        if self._shape is None:
            self._state = self._functions["decode"].make_state()
        else:
            self._cache = {key: np.zeros(self._shape, self._dtype) for key in ("keys", "values")}

    def run(self, function: str, inputs: dict, tokens: int) -> np.ndarray:
        """The hidden state after these layers, (1, C, 1, T); the cache grows by `tokens` rows."""
        if self._shape is None:
            return self._functions[function].predict(inputs, self._state)["hidden_out"]
        at = inputs["position"][0]
        inputs = {name: value for name, value in inputs.items() if name != "position"}
        outputs = self._functions[function].predict(inputs | self._cache)
        for key, cache in self._cache.items():
            cache[:, :, at : at + tokens] = outputs[f"new_{key}"][:, :, :tokens]
        return outputs["hidden_out"]


class Engine:
    """The functions of a bundle's packages, loaded, with their caches and input arrays.

    Raises InvalidBundle when a package lacks the functions or shapes that the manifest says.
    """

    def __init__(self, bundle: Bundle, backend: Backend):
        manifest = bundle.manifest
        _check_memory(manifest)
        self.config, recipe = manifest.config, manifest.recipe
        self.context, self.argmax_output = recipe.context, recipe.argmax_output
        self._dtype = backend.dtype
        self._embedding = np.asarray(bundle.embedding)  # (V, C), still mapped, less overhead
        self._norm: np.ndarray | None = None  # of the head (C,), where it is the host's
        self._shards: list[_Shard | HostLayer] = []
        if manifest.norms is not None:
            self._load_layers(bundle, backend)
        for shard in manifest.shards if manifest.norms is None else ():
            functions = _load(bundle, backend, shard.package, shard_types(manifest, shard))
            cache = cache_shape(manifest, shard) if recipe.kv == "host" else None
            self._shards.append(_Shard(functions, cache, backend.dtype))
        self._head = [
            _load(bundle, backend, package, head_types(manifest, package))
            for package in dict.fromkeys(manifest.head.packages)
        ]
        tables = self.config.rotary.tables(np.arange(self.context))  # 2 x (1, 1, S, D)
        self._tables = {
            f"rope_{name}": table.astype(backend.dtype)
            for name, table in zip(("cos", "sin"), tables, strict=True)
        }
        self._calls = {
            name: _Call(width, self.context, self.config, backend.dtype)
            for name, width in recipe.functions.items()
        }
        self._outputs = [f"logits_{i}" for i in range(len(manifest.head.splits))]

    def _load_layers(self, bundle: Bundle, backend: Backend) -> None:
        """The layers of a bundle in projections, and the norm of its head."""
        manifest, layers = bundle.manifest, range(self.config.num_layers)
        norms = {name: array.astype(np.float32) for name, array in bundle.norms().items()}
        self._norm = norms["final"]
        programs: list[dict[str, dict]] = [{} for _ in layers]
        for shard in manifest.shards:
            functions = _load(bundle, backend, shard.package, shard_types(manifest, shard))
            programs[shard.layers[0]][shard.projection] = functions
        for i in layers:
            qk_norms = norms["qk"][i] if "qk" in norms else None
            own = programs[i], self.config, self.context, norms["layers"][i], qk_norms
            self._shards.append(HostLayer(*own, backend.dtype))

    def clear(self) -> None:
        """Empty every shard's cache."""
        for shard in self._shards:
            shard.clear()

    def chunks(self, position: int, tokens: int) -> Iterator[tuple[int, int]]:
        """How `tokens` tokens from `position` on are cut into calls, as (start, stop).

        A chunk needs all its T slots, padding included: near the end of the context, and for a
        single token, it is the one-token function's turn.
        """
        width, start = self._calls["prefill"].tokens, 0
        while start < tokens:
            count = min(width, tokens - start)
            if position + start + width > self.context:
                count = 1
            yield start, start + count
            start += count

    def forward(self, ids: np.ndarray, position: int) -> np.ndarray:
        """Run one chunk through all shards: the last hidden state (1, C, 1, T)."""
        function = "decode" if len(ids) == 1 else "prefill"
        rows = self._embedding[ids]  # (n, C)
        inputs = self._calls[function].inputs(rows, position, self._tables)
        for shard in self._shards:
            inputs["hidden"] = shard.run(function, inputs, len(ids))
        return inputs["hidden"]

    def head(self, hidden: np.ndarray) -> np.ndarray | list[int]:
        """Logits (T, V) float32, or token ids, of a hidden state (1, C, 1, T)."""
        function = "decode" if hidden.shape[3] == 1 else "prefill"
        if self._norm is not None:
            weight, eps = self._norm[:, None, None], self.config.rms_norm_eps
            hidden = rms_norm(hidden, weight, 1, eps).astype(self._dtype)
        hidden, outputs = np.ascontiguousarray(hidden), {}
        for functions in self._head:
            outputs |= functions[function].predict({"hidden": hidden})
        if self.argmax_output:
            return outputs["token"].reshape(-1).tolist()
        parts = [outputs[name][0, :, 0, :] for name in self._outputs]  # (V_i, T)
        return np.concatenate(parts, axis=0, dtype=np.float32, casting="unsafe").T  # (T, V)
