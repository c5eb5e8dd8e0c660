"""`PromptCache`: what a session holds, as `transformers` has it: keys are rotated, not scaled, and
their pairs are in its order.

Letters: n tokens, K key/value heads, D head size, R rotated dimensions of it; those of tails and
memories are in `ane_book.layout`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
import math

from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Place
from ane_book.errors import InvalidInput
from ane_book.layout import Rows, Shape, Tail
import numpy as np

#: What a cache has to have in common with the session that goes on from it.
SAME = ("weights", "tokenizer", "recipe", "adapter", "precision")

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
    in order. made_of: the model's name, and fingerprints of what `SAME` names; {} of a file that
    does not say.
    """

    tokens: list[int]
    position: int
    layers: list[LayerCache]
    made_of: dict[str, str] = field(default_factory=dict)


def made_of(manifest: Manifest, dtype: np.dtype, adapter: str) -> dict[str, str]:
    """What a bundle's caches are made of; adapter: the fingerprint of the one in use, or "none"."""
    recipe = f"quant {manifest.recipe.quant}, silu {manifest.recipe.silu}"
    for table in manifest.host.rotary.values():
        if table.kind == "longrope":  # whose divisors go by the context
            short = manifest.context <= table.scaling["original_max_position_embeddings"]
            recipe += ", short factors" if short else ", long factors"
    return {
        "model": manifest.name,
        "weights": manifest.source.fingerprint,
        "tokenizer": manifest.sha256[manifest.tokenizer.file],
        "recipe": recipe,
        "adapter": adapter,
        "precision": dtype.name,
    }


class KeptLayer:
    """A layer of a bundle that keeps something, as `LayerCache` has it and as packages do."""

    def __init__(self, number: int, manifest: Manifest, places: list[Place]):
        own, self.number, self._layout = manifest.layers[number], number, manifest.layout
        self.places: dict[str, list[Place]] = {}
        for place in places:
            self.places.setdefault(_name(place), []).append(place)
        self.window = manifest.host.masks[own.mask] if own.mask else None
        self._scales, self._order = {"memory": own.memory_scale}, np.arange(0)
        if own.rotary:
            table = manifest.host.rotary[own.rotary]
            given, D, R = table.attention_scale, table.head_dim, table.rotary_dim
            self._scales["keys"] = D**-0.25 if given is None else math.sqrt(given)
            self._order = np.arange(D)  # of a key's dimensions: their numbers in `transformers`
            if own.neighbours:
                self._order[:R] = self._order[:R].reshape(-1, 2).T.ravel()

    def shapes(self, n: int) -> dict[str, Shape]:
        """The shapes of its arrays after n tokens."""
        found: dict[str, Shape] = {}
        for name, (place, *_) in self.places.items():
            kind = place.store.kind
            if isinstance(kind, Rows):
                D = self._order.size or kind.size
                found[name] = kind.heads * kind.size // D, min(n, self.window or n), D
            elif isinstance(kind, Tail):
                found[name] = kind.channels, kind.width
            else:
                found[name] = kind.heads, kind.values, kind.keys
        return found

    def taken(self, name: str, array: np.ndarray, n: int) -> np.ndarray:
        """An array of `LayerCache` from what a package keeps of n tokens for this layer."""
        shape, scale = self.shapes(n)[name], self._scales.get(name, 1.0)
        array = np.asarray(array, np.float32) / np.float32(scale)
        if name in ("tail", "memory"):
            return array.reshape(shape)
        K, rows, D = shape
        if self._layout.tokens == 3:  # (K * D, 1, n)
            array = array.reshape(K, D, n).swapaxes(1, 2)
        array = array[:, n - rows :]
        if name == "keys" and self._order.size:
            array = array[..., np.argsort(self._order)]
        return array

    def given(self, name: str, array: np.ndarray, n: int) -> np.ndarray:
        """What a package keeps of n tokens for this layer, from an array of `LayerCache`."""
        array = np.asarray(array, np.float32) * np.float32(self._scales.get(name, 1.0))
        if name == "tail":
            return array[:, None]
        if name == "memory":
            return array
        if name == "keys" and self._order.size:
            array = array[..., self._order]
        whole = np.pad(array, [(0, 0), (n - array.shape[1], 0), (0, 0)])
        if self._layout.tokens == 3:
            return whole.swapaxes(1, 2).reshape(-1, 1, n)
        return whole


def _name(place: Place) -> str:
    """What `LayerCache` calls an array of a package."""
    if isinstance(place.store.kind, Rows):
        return place.name.partition("_")[0]
    return "tail" if isinstance(place.store.kind, Tail) else "memory"


def kept_layers(manifest: Manifest) -> list[KeptLayer]:
    """The layers that keep something, in order; raises InvalidInput where a manifest is silent."""
    if not manifest.layers:
        raise InvalidInput(
            f"{manifest.name}: its manifest.json does not say what its layers keep; convert the "
            "model again"
        )
    found: dict[int, list[Place]] = {}
    for place in manifest.places():
        found.setdefault(place.layer, []).append(place)
    return [KeptLayer(number, manifest, found[number]) for number in sorted(found)]


def collect(
    manifest: Manifest, kept: list[Arrays], tokens: list[int], made: dict[str, str]
) -> PromptCache:
    """The cache of tokens from what packages keep of them, by store."""
    n, dtype, layers = len(tokens), np.dtype(made["precision"]), []
    for layer in kept_layers(manifest):
        arrays = {
            name: layer.taken(name, kept[place.package][place.store.name][place.index], n)
            for name, (place, *_) in layer.places.items()
        }
        arrays = {name: np.array(own, dtype, order="C") for name, own in arrays.items()}
        layers.append(LayerCache(arrays, layer.window))
    return PromptCache(list(tokens), n, layers, made)


def check_made(theirs: dict[str, str], made: dict[str, str]) -> None:
    """Raise InvalidInput unless a cache is made of what a session's own are made of."""
    for name in SAME:
        if theirs.get(name) != made[name]:
            raise InvalidInput(
                f"the cache is of other {name}: {theirs.get(name, '')!r:.80}, and here is "
                f"{made[name]!r:.80}; read the prompt again"
            )


def check(cache: PromptCache, manifest: Manifest, made: dict[str, str]) -> None:
    """Raise InvalidInput unless a session of this bundle can go on from a cache."""
    n, vocabulary = cache.position, manifest.embedding.shape[0]
    if cache.made_of:
        check_made(cache.made_of, made)
    if not 0 < n <= manifest.context:
        raise InvalidInput(f"a cache of {n} tokens, and the context is {manifest.context}")
    if not cache.tokens:
        raise InvalidInput(f"the cache does not say its {n} tokens; give them (tokens=[...])")
    if len(cache.tokens) != n:
        raise InvalidInput(f"{len(cache.tokens)} tokens are named, and the cache is of {n}")
    for token in cache.tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise InvalidInput(f"token id {token!r:.40} is outside the vocabulary of {vocabulary}")
    layers = kept_layers(manifest)
    if len(cache.layers) != len(layers):
        found = len(cache.layers)
        raise InvalidInput(f"{found} layers have a cache, and here {len(layers)} keep one")
    for own, layer in zip(cache.layers, layers, strict=True):
        shapes = {name: array.shape for name, array in own.arrays.items()}
        if (shapes, own.window) != (layer.shapes(n), layer.window):
            raise InvalidInput(
                f"layer {layer.number} has {_said(shapes, own.window)}, and after {n} tokens here "
                f"{_said(layer.shapes(n), layer.window)}"
            )


def _said(shapes: Mapping[str, Shape], window: int | None) -> str:
    named = ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
    return f"{named or 'nothing'}" + (f" of a window of {window}" if window else "")


def restored(cache: PromptCache, manifest: Manifest, dtype: np.dtype) -> list[Arrays]:
    """What packages keep, by store, from a cache that was checked; raises InvalidInput for a number
    that is not finite."""
    kept: list[dict[str, list]] = [{} for _ in manifest.shards]
    for own, layer in zip(cache.layers, kept_layers(manifest), strict=True):
        for name, places in layer.places.items():
            with np.errstate(over="ignore"):
                array = layer.given(name, own.arrays[name], cache.position).astype(dtype)
            if not np.isfinite(array).all():
                raise InvalidInput(f"layer {layer.number}: {name} are not finite in {dtype.name}")
            for place in places:
                entries = kept[place.package].setdefault(place.store.name, [])
                entries += [None] * (place.store.n - len(entries))
                entries[place.index] = array
    return [{name: np.stack(own) for name, own in arrays.items()} for arrays in kept]
