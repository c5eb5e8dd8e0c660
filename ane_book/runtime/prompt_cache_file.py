"""A `PromptCache` as a file that mlx-lm and mlx-swift-lm go on from, and the files that they write.

Safetensors: the tensor "i.j" is array j of layer i's cache, and the metadata is lists and records
whose items have names such as "0.model" and "2.7.1":

    "mlx"        mlx-lm 0.32 and later: [the user's, classes, scalars]; an integer of a cache is a
                 tensor behind its arrays, which `scalars` names
    "mlx-swift"  mlx-swift-lm: [integers of each cache, the user's, classes]

    KVCache          keys and values (1, K, rows, D), and offset: the tokens, of which there may be
                     fewer than rows
    RotatingKVCache  the same as a ring; keep: how many of its rows stay, max_size, and _idx: the
                     row behind the newest
    ArraysCache      a tail (1, W, R), a memory (1, H, Dv, Dk); in Swift a MambaCache

mlx-lm up to 0.31 wrote the second form with other integers; it is read. The user's metadata has
`ane_book`, as JSON: the tokens, and what the cache is made of.

References: mlx_lm/models/cache.py; mlx-swift-lm, KVCache.swift.
"""

import json
from math import prod
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ane_book.bundle.manifest import Manifest
from ane_book.errors import InvalidInput, printable
from ane_book.layout import Shape
from ane_book.runtime.prompt_cache import (
    KeptLayer,
    LayerCache,
    PromptCache,
    check_made,
    kept_layers,
)
from mlprogram.files import telling, written_whole
import numpy as np

FileForm = Literal["mlx", "mlx-swift"]

MAX_HEADER = 1 << 26  # bytes; a million tokens need less

#: Families that mlx-lm computes as `transformers` does and has classes for, and how it stretches
#: their contexts.
STRETCHED = ("linear", "llama3", "yarn")
IN_MLX = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite"), STRETCHED
    ),
    "phi3": ("linear", "longrope"),
    "gemma3_text": ("linear",),
    **dict.fromkeys(("qwen3_moe", "lfm2", "lfm2_moe", "granitemoehybrid"), ()),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5"), ()),
}

#: Of YaRN, what mlx-lm leaves out.
UNREAD = {"attention_factor", "truncate"}

#: Classes of what layers of attention keep, and others.
ROWS, ARRAYS = ("KVCache", "KVCacheSimple", "RotatingKVCache"), ("ArraysCache", "MambaCache")

#: Types of tensors, and what numpy maps them as; it has no bfloat16.
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
WHOLE = {"I32": "<i4", "I64": "<i8", "U32": "<u4"}

#: What reading a damaged header may raise.
DAMAGED = (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError)


def check_form(manifest: Manifest, form: str) -> None:
    """Raise InvalidInput unless a bundle's caches can be written in this form."""
    if form not in ("mlx", "mlx-swift"):
        raise InvalidInput(f'form must be "mlx" or "mlx-swift", not {form!r:.40}')
    family, host = str(manifest.model.get("architecture")), manifest.host
    if family not in IN_MLX:
        raise InvalidInput(f"mlx-lm has no cache of what {family:.40} models keep")
    if family == "mistral" and any(host.masks.values()):
        raise InvalidInput("mlx-lm has no window in Mistral models, and this one has")
    for table in host.rotary.values():
        scaling, kind = table.scaling, table.kind or "default"
        if kind not in ("default", *IN_MLX[family]):
            raise InvalidInput(f"mlx-lm does not rotate {family} models by {kind:.40} scaling")
        if kind == "yarn" and UNREAD & {name for name, own in scaling.items() if own is not None}:
            raise InvalidInput(f"mlx-lm does not read all of this YaRN: {sorted(UNREAD)}")
        if kind == "longrope" and manifest.context <= scaling["original_max_position_embeddings"]:
            raise InvalidInput(
                f"mlx-lm has LongRoPE's long factors for every context, and this one, of "
                f"{manifest.context} tokens, the short ones; convert with a longer --context"
            )


# --- writing


def write_cache(path: Path, cache: PromptCache, form: FileForm) -> None:
    """Write a cache to a file of mode 600, whole or not at all; raises InvalidInput for a place
    that cannot be written to, or OutOfSpace."""
    from safetensors.numpy import save_file

    record = json.dumps({"tokens": cache.tokens, "made_of": cache.made_of})
    given = {"model": cache.made_of["model"], "tokenizer_config": "{}", "ane_book": record}
    stored = (_stored(own, cache.position, form) for own in cache.layers)
    kinds, states, numbers = zip(*stored, strict=True)
    tensors, scalars = {}, [""]
    for name, item in _flat(list(states)).items():
        if isinstance(item, np.ndarray):
            tensors[name] = np.ascontiguousarray(item)
        else:
            tensors[name] = np.zeros(0, np.float32) if item is None else np.array(item, np.int32)
            scalars.append([name, "none" if item is None else "scalar"])
    parts = [given, kinds, scalars] if form == "mlx" else [numbers, given, kinds]
    with telling(path, "name another file"), written_whole(path) as unfinished:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        save_file(tensors, unfinished, _flat(parts))


def _stored(layer: LayerCache, n: int, form: FileForm) -> tuple[str, list, list[str]]:
    """The class of a layer's cache, its arrays and integers, and what Swift has beside arrays."""
    arrays = {name: array[None] for name, array in layer.arrays.items()}
    if "keys" not in arrays:
        found = [arrays["tail"].swapaxes(1, 2)]
        found += [arrays["memory"]] if "memory" in arrays else []
        if form == "mlx":
            return "ArraysCache", [found, None, None], []
        return "MambaCache", found, ["2", ",".join(map(str, range(len(found))))]
    found, rows, window = [arrays["keys"], arrays["values"]], arrays["keys"].shape[2], layer.window
    if not window:
        return "KVCache", [*found, *([n] if form == "mlx" else [])], [""]
    if form == "mlx":
        return "RotatingKVCache", [*found, n, 0, window, rows], []
    return "RotatingKVCache", found, [str(number) for number in (0, window, 256, n, rows)]


def _flat(item: Any, name: str = "") -> dict[str, Any]:
    """What lists and records hold, by the names of items in items."""
    if not isinstance(item, list | tuple | dict):
        return {name.removeprefix("."): item}
    found: dict[str, Any] = {}
    for key, own in item.items() if isinstance(item, dict) else enumerate(item):
        found |= _flat(own, f"{name}.{key}")
    return found


# --- reading


def read_cache(
    path: Path, manifest: Manifest, made: dict[str, str], tokens: list[int] | None = None
) -> PromptCache:
    """Read a cache of a bundle's model; made: what the bundle's own are made of.

    tokens: what the cache holds, for a file that does not say. Raises InvalidInput.
    """
    file = _File(path)
    known, made_of = file.record()
    if made_of:
        check_made(made_of, made)
    else:
        check_form(manifest, "mlx")
    if tokens and known and tokens != known:
        raise InvalidInput("the cache is of other tokens than those that are given")
    tokens = known or tokens or []
    kinds, layers = file.kinds(), kept_layers(manifest)
    if len(kinds) != len(layers):
        raise InvalidInput(f"{len(kinds)} layers have a cache, and here {len(layers)} keep one")
    rings = [file.ring(i, *pair) for i, pair in enumerate(zip(kinds, layers, strict=True))]
    n = len(tokens) or max((ring.offset for ring in rings if ring), default=0)
    if not 0 < n <= manifest.context:
        raise InvalidInput(f"a cache of {n} tokens, and the context is {manifest.context}")
    found = []
    for i, (ring, layer) in enumerate(zip(rings, layers, strict=True)):
        arrays = file.rows(i, ring, layer, n) if ring else file.arrays(i, layer, n)
        found.append(LayerCache(arrays, layer.window))
    if file.tensors:
        raise InvalidInput(f"the tensor {min(file.tensors)!r:.80} is of no layer")
    return PromptCache(tokens, n, found, made_of)


class _Ring(NamedTuple):
    """Which rows are those of `offset` tokens: the first `end`, and if there are more tokens than
    that, those behind them, which are older."""

    offset: int
    end: int


class _Tensor(NamedTuple):
    dtype: str
    shape: Shape
    start: int  # of its bytes, behind the header
    stop: int


class _File:
    """A safetensors file, whose header is checked; `tensors`: those that were not read yet."""

    def __init__(self, path: Path):
        try:
            if not path.is_file():
                raise ValueError("no such file")
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(MAX_HEADER, size - 8):
                    raise ValueError("cut short, or no safetensors file")
                header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
            self.metadata = _texts(header.pop("__metadata__"))
            self.tensors = _tensors(header, size - 8 - length)
            self._data = np.memmap(path, np.uint8, "r", 8 + length)
        except DAMAGED as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInput(f"not a prompt cache: {printable(str(reason))[:200]}") from None
        self._new = self.metadata.get("2.0") == ""

    def record(self) -> tuple[list[int], dict[str, str]]:
        """The tokens, and what the cache is made of, as far as the file says."""
        text = self.metadata.get("0.ane_book" if self._new else "1.ane_book", "{}")
        try:
            record = json.loads(text, object_pairs_hook=_once)
            return [*record.get("tokens", [])], _texts(record.get("made_of", {}))
        except DAMAGED:
            raise InvalidInput("its metadata 'ane_book' is damaged") from None

    def kinds(self) -> list[str]:
        """The class of each layer's cache."""
        start, found = "1." if self._new else "2.", []
        while (name := f"{start}{len(found)}") in self.metadata:
            found.append(self.metadata[name])
        return found

    def ring(self, i: int, kind: str, layer: KeptLayer) -> _Ring | None:
        """Where the rows of cache i are; None for a layer without attention."""
        attends = "keys" in layer.places
        if kind not in (ROWS if attends else ARRAYS):
            raise InvalidInput(f"layer {layer.number} has a {kind!r:.40}, which is not read here")
        if not attends:
            return None
        R = (*self._find(f"{i}.0").shape, 0, 0, 0)[2]
        if kind != "RotatingKVCache":
            offset, keep = self._integer(f"{i}.2") if self._new else R, 0
            end = offset
        elif self._new:
            offset, keep, _, end = (self._integer(f"{i}.{j}") for j in range(2, 6))
        else:  # keep, max_size, in Swift a step, offset, _idx
            numbers = [self.metadata.get(f"0.{i}.{j}", "") for j in range(5)]
            keep, *_, offset, end = (int(own) if own.isdecimal() else -1 for own in numbers if own)
        if not 0 <= end <= R or offset < end or (offset > end and (keep or offset < R)):
            raise InvalidInput(
                f"layer {layer.number}: {R} rows, {keep} of which stay, with row {end} behind the "
                f"newest, are not what is kept of {offset} tokens"
            )
        return _Ring(offset, end)

    def rows(self, i: int, ring: _Ring, layer: KeptLayer, n: int) -> dict[str, np.ndarray]:
        """Keys and values of a layer of attention after n tokens."""
        found = {}
        for j, name in enumerate(("keys", "values")):
            K, rows, D = layer.shapes(n)[name]
            array = self._array(f"{i}.{j}", (1, K, *self._find(f"{i}.{j}").shape[2:3], D))[0]
            new, older = array[:, : ring.end], array[:, ring.end :]
            if ring.offset == ring.end:  # rows that are not in use
                older = older[:, :0]
            older = older[:, max(older.shape[1] + new.shape[1] - rows, 0) :]
            whole = np.concatenate([older, new[:, -rows:]], axis=1)
            if ring.offset != n or whole.shape[1] != rows:
                raise InvalidInput(
                    f"layer {layer.number} lacks rows of the last {rows} of {n} tokens"
                )
            found[name] = _numbers(whole)
        return found

    def arrays(self, i: int, layer: KeptLayer, n: int) -> dict[str, np.ndarray]:
        """Tail and memory of a layer without attention."""
        shapes, found = layer.shapes(n), {}
        for j, name in enumerate(name for name in ("tail", "memory") if name in shapes):
            shape = shapes[name][::-1] if name == "tail" else shapes[name]
            array = _numbers(self._array(f"{i}.0.{j}" if self._new else f"{i}.{j}", (1, *shape)))[0]
            found[name] = array.T if name == "tail" else array
        for name in (f"{i}.1", f"{i}.2") if self._new else ():  # padding, and lengths of a batch
            self._array(name, (0,))
        return found

    def _find(self, name: str) -> _Tensor:
        if name not in self.tensors:
            raise InvalidInput(f"the tensor {name!r} is missing")
        return self.tensors[name]

    def _array(self, name: str, shape: Shape, types: dict[str, str] = FLOATS) -> np.ndarray:
        """A tensor of this shape, mapped."""
        tensor = self._find(name)
        if tensor.shape != shape or tensor.dtype not in types:
            raise InvalidInput(
                f"the tensor {name!r} is {tensor.dtype} {tensor.shape}, and {shape} of "
                f"{', '.join(types)} is needed"
            )
        del self.tensors[name]
        return self._data[tensor.start : tensor.stop].view(types[tensor.dtype]).reshape(shape)

    def _integer(self, name: str) -> int:
        return int(self._array(name, (), WHOLE))


def _numbers(array: np.ndarray) -> np.ndarray:
    """An array in memory; of bfloat16, which was mapped as it is, in float32."""
    return (array.astype("<u4") << 16).view("<f4") if array.dtype == "<u2" else np.array(array)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A record of JSON, whose names are all different; raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _texts(given: Any) -> dict[str, str]:
    """A record of texts; raises ValueError."""
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ValueError("its metadata are not texts by name")
    return given


def _tensors(header: dict[str, dict], size: int) -> dict[str, _Tensor]:
    """The tensors of a header, which fill the bytes behind it; raises ValueError and others."""
    found, end = {}, 0
    for name, own in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        tensor = _Tensor(own["dtype"], tuple(own["shape"]), *own["data_offsets"])
        types = FLOATS | WHOLE
        sizes = all(type(size) is int and size >= 0 for size in tensor.shape)
        if tensor.dtype not in types or not sizes:
            raise ValueError(f"tensor {name} is {tensor.dtype} {tensor.shape}")
        expected = prod(tensor.shape) * np.dtype(types[tensor.dtype]).itemsize
        if tensor.start != end or tensor.stop - end != expected:
            raise ValueError(f"tensor {name} needs {expected} bytes from {end}: {tensor}")
        found[name], end = tensor, tensor.stop
    if end != size:
        raise ValueError(f"{size} bytes of tensors, and the header says {end}")
    return found
