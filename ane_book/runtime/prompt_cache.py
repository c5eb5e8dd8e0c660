"""`PromptCache`: what a session holds, as `transformers` has it: keys rotated and not scaled, with
their pairs in its order.

Letters: n tokens, K key/value heads, D head size, R rotated dimensions of it; those of tails and
memories are in `ane_book.layout`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
import math

from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import StoreEntry
from ane_book.errors import InvalidInput
from ane_book.layout import CallShape, Rows, Tail
import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class LayerCache:
    """What one layer keeps of n tokens.

    arrays: of attention "keys" and "values", each (K, rows, D) in the order of tokens; of other
    layers "tail" (R, W) and "memory" (H, Dv, Dk). window: of attention to the last so many tokens
    alone, which keeps min(n, window) rows.
    """

    arrays: Mapping[str, np.ndarray]
    window: int | None = None


@dataclass(frozen=True, eq=False)
class PromptCache:
    """What a session holds of n tokens.

    tokens: their ids; [] where a file does not say. position: n. layers: those that keep something,
    in order. made_of: the model's name, and fingerprints of its weights, tokenizer, recipe, adapter
    and precision; {} of a file by others. messages: the conversation that a file was saved with.
    """

    tokens: list[int]
    position: int
    layers: list[LayerCache]
    made_of: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)


def made_of(manifest: Manifest, dtype: np.dtype, adapter: str) -> dict[str, str]:
    """What a bundle's caches are made of; adapter: the fingerprint of the one in use, or "none"."""
    recipe = f"quant {manifest.recipe.quant}, silu {manifest.recipe.silu}"
    for table in manifest.host.rotary.values():
        if table.kind == "longrope":  # whose divisors go by the context
            short = manifest.context <= table.scaling["original_max_position_embeddings"]
            recipe += f", {'short' if short else 'long'} factors"
    return {
        "model": manifest.name,
        "weights": manifest.source.fingerprint,
        "tokenizer": manifest.sha256[manifest.tokenizer.file],
        "recipe": recipe,
        "adapter": adapter,
        "precision": dtype.name,
    }


class KeptLayer:
    """A layer of a bundle that keeps something; places: where packages have its arrays, by the
    names that `LayerCache` has."""

    def __init__(self, number: int, manifest: Manifest):
        own, self.number, self._layout = manifest.layers[number], number, manifest.layout
        self.places: dict[str, list[StoreEntry]] = {}
        self.window = manifest.host.masks[own.mask] if own.mask else None
        self.scales, self._order = {"memory": own.memory_scale}, np.arange(0)
        if own.rotary:
            table = manifest.host.rotary[own.rotary]
            given, D, R = table.attention_scale, table.head_dim, table.rotary_dim
            self.scales["keys"] = D**-0.25 if given is None else math.sqrt(given)
            self._order = np.arange(D)  # of a key's numbers in `transformers`: where they are here
            if own.neighbours:
                self._order[:R] = self._order[:R].reshape(2, -1).T.ravel()

    def rows(self, n: int) -> int:
        """Of how many of n tokens it keeps rows."""
        return min(n, self.window or n)

    def seen(self, name: str, kept: list[Arrays], n: int, place: StoreEntry) -> np.ndarray:
        """A view of what packages keep, by store, of n tokens for this layer: as `LayerCache` has
        it, but for scales and the order of a key's numbers."""
        array = kept[place.package][place.store.name][place.index]
        if name in ("tail", "memory"):
            return array[:, 0] if name == "tail" else array
        if self._layout.tokens == 3:  # (K * D, 1, n)
            array = array.reshape(-1, self._order.size, n).swapaxes(1, 2)
        return array[:, n - self.rows(n) :]

    def order(self, name: str) -> np.ndarray | slice:
        return self._order if name == "keys" else slice(None)


def kept_layers(manifest: Manifest) -> list[KeptLayer]:
    """The layers that keep something, in order; raises InvalidInput where a manifest is silent."""
    if not manifest.layers:
        raise InvalidInput(
            f"{manifest.name}: its manifest does not say what layers keep; convert the model again"
        )
    found: dict[int, KeptLayer] = {}
    for place in sorted(manifest.places(), key=lambda place: place.layer):
        layer = found.setdefault(place.layer, KeptLayer(place.layer, manifest))
        name = place.name.partition("_")[0]
        if not isinstance(place.store.kind, Rows):
            name = "tail" if isinstance(place.store.kind, Tail) else "memory"
        layer.places.setdefault(name, []).append(place)
    return [*found.values()]


def collect(
    manifest: Manifest, kept: list[Arrays], tokens: list[int], made: dict[str, str]
) -> PromptCache:
    """The cache of tokens, from what packages keep of them by store."""
    n, layers = len(tokens), []
    for layer in kept_layers(manifest):
        arrays = {}
        for name, (place, *_) in layer.places.items():
            own = layer.seen(name, kept, n, place)[..., layer.order(name)].astype(np.float32)
            own /= np.float32(layer.scales.get(name, 1.0))
            arrays[name] = np.array(own, made["precision"], order="C")
        layers.append(LayerCache(arrays, layer.window))
    return PromptCache([*tokens], n, layers, made)


def check_made(theirs: dict[str, str], made: dict[str, str]) -> None:
    """Raise InvalidInput unless a cache is made of what a session's own are made of."""
    for name in made:
        if name != "model" and theirs.get(name) != made[name]:
            raise InvalidInput(
                f"the cache is of other {name}: {theirs.get(name)!r:.80}, and not "
                f"{made[name]!r:.80}; read the prompt again"
            )


def restored(cache: PromptCache, manifest: Manifest, made: dict[str, str]) -> list[Arrays]:
    """What packages keep, by store, in a session that goes on from a cache.

    made: what its own caches are made of. Raises InvalidInput for a cache of another model.
    """
    n, V, dtype = cache.position, manifest.embedding.shape[0], np.dtype(made["precision"])
    if cache.made_of:
        check_made(cache.made_of, made)
    if not 0 < n <= manifest.context:
        raise InvalidInput(f"a cache of {n} tokens, and the context is {manifest.context}")
    if len(cache.tokens) != n:
        raise InvalidInput(
            f"the cache names {len(cache.tokens)} of its {n} tokens; give them, as tokens=[...]"
        )
    for token in cache.tokens:
        if type(token) is not int or not 0 <= token < V:
            raise InvalidInput(f"token id {token!r:.40} is outside the vocabulary of {V}")
    layers = kept_layers(manifest)
    if len(cache.layers) != len(layers):
        found = len(cache.layers)
        raise InvalidInput(f"{found} layers have a cache, and here {len(layers)} keep one")
    kept: list[Arrays] = [{} for _ in manifest.shards]
    for place in manifest.places():
        shape = place.store.shape(CallShape(1, n, manifest.layout))
        kept[place.package].setdefault(place.store.name, np.zeros(shape, dtype))
    for own, layer in zip(cache.layers, layers, strict=True):
        if own.arrays.keys() != layer.places.keys() or own.window != layer.window:
            raise InvalidInput(
                f"layer {layer.number} has {sorted(own.arrays)} with a window of {own.window}, and "
                f"here {sorted(layer.places)} with {layer.window}"
            )
        for name, array in own.arrays.items():
            scale = np.float32(layer.scales.get(name, 1.0))
            for place in layer.places[name]:
                room = layer.seen(name, kept, n, place)
                if array.shape != room.shape:
                    raise InvalidInput(
                        f"layer {layer.number}: {name} are {array.shape} after {n} tokens, and "
                        f"here {room.shape}"
                    )
                with np.errstate(over="ignore"):
                    room[..., layer.order(name)] = array.astype(np.float32) * scale
                if not np.isfinite(room).all():
                    raise InvalidInput(f"layer {layer.number}: {name} are not finite in {dtype}")
    return kept
