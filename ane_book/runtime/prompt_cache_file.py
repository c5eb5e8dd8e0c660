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
`ane_book`, as JSON: the tokens, what the cache is made of, and the messages, if there are any.

References: mlx_lm/models/cache.py; mlx-swift-lm, KVCache.swift.
"""

from collections.abc import Container
from dataclasses import replace
import json
import os
from pathlib import Path
from typing import Any, Literal

from ane_book.bundle.manifest import Manifest
from ane_book.errors import InvalidInput, InvalidWeights
from ane_book.runtime.prompt_cache import (
    Arrays,
    LayerCache,
    PromptCache,
    check_made,
    kept_layers,
)
from mlprogram.files import check_file, private_file
import numpy as np

FileForm = Literal["mlx", "mlx-swift"]

#: Families that mlx-lm computes as `transformers` does and has classes for, and how it stretches
#: their contexts.
STRETCHED = ("linear", "llama3", "yarn")
IN_MLX: dict[str, tuple[str, ...]] = {
    "llama": STRETCHED, "mistral": STRETCHED, "ministral3": STRETCHED, "qwen2": STRETCHED,
    "qwen3": STRETCHED, "qwen3_moe": (), "qwen3_5_text": (), "qwen3_5": (),
    "phi3": ("linear", "longrope"), "hunyuan_v1_dense": ("dynamic",), "glm4": (),
    "gemma3_text": ("linear",), "gemma4_text": ("proportional",), "gemma4": ("proportional",),
    "smollm3": STRETCHED, "olmo2": STRETCHED, "olmo3": STRETCHED, "exaone4": STRETCHED,
    "granite": STRETCHED, "granitemoehybrid": (), "lfm2": (), "lfm2_moe": (),
}  # fmt: skip

UNREAD = "attention_factor", "truncate"  # of YaRN, by mlx-lm

#: Classes of what layers of attention keep, and others.
ROWS, ARRAYS = ("KVCache", "KVCacheSimple", "RotatingKVCache"), ("ArraysCache", "MambaCache")

FLOATS, WHOLE = ("F32", "F16", "BF16"), ("I32", "I64", "U32")  # types of tensors


def check_form(manifest: Manifest, form: str) -> None:
    """Raise InvalidInput unless a bundle's caches can be written in this form."""
    if form not in ("mlx", "mlx-swift"):
        raise InvalidInput(f'form must be "mlx" or "mlx-swift", not {form!r:.40}')
    family, host = str(manifest.model.get("architecture")), manifest.host
    if family not in IN_MLX:
        raise InvalidInput(f"mlx-lm has no cache of what {family:.40} models keep")
    if family == "mistral" and any(host.masks.values()):
        raise InvalidInput("mlx-lm has no window in Mistral models, and this one has")
    if manifest.model.get("mamba_groups", 1) != 1:
        raise InvalidInput("mlx-lm norms the groups of Mamba's heads as one, and here are several")
    for table in host.rotary.values():
        scaling, kind = table.scaling, table.kind or "default"
        if kind not in ("default", *IN_MLX[family]):
            raise InvalidInput(f"mlx-lm does not rotate {family} models by {kind:.40} scaling")
        if kind == "yarn":
            read = {name: own for name, own in scaling.items() if name not in UNREAD}
            theirs = replace(table, scaling=read)
            if not np.allclose(table.tables(np.ones(1)), theirs.tables(np.ones(1))):
                raise InvalidInput(f"mlx-lm leaves out {' and '.join(UNREAD)} of YaRN")
        if kind == "longrope" and manifest.context <= scaling["original_max_position_embeddings"]:
            raise InvalidInput(
                f"mlx-lm has LongRoPE's long factors for every context, and this one, of "
                f"{manifest.context} tokens, the short ones; convert with a longer --context"
            )


def write_cache(path: Path, cache: PromptCache, form: FileForm) -> None:
    """Write a cache to a file of mode 600, whole or not at all; raises InvalidInput for a place
    that cannot be written to, or OutOfSpace."""
    from safetensors.numpy import save

    said = {"messages": _texts(cache.messages)} if cache.messages else {}
    record = json.dumps({"tokens": cache.tokens, "made_of": cache.made_of, **said})
    given = {"model": cache.made_of["model"], "tokenizer_config": "{}", "ane_book": record}
    stored = (_stored(own, cache.position, form) for own in cache.layers)
    kinds, states, numbers = zip(*stored, strict=True)
    tensors: Arrays = {}
    scalars: list = [""]
    for name, item in _flat(list(states)).items():
        if isinstance(item, np.ndarray):
            tensors[name] = np.ascontiguousarray(item)
        else:
            tensors[name] = np.zeros(0, np.float32) if item is None else np.array(item, np.int32)
            scalars.append([name, "none" if item is None else "scalar"])
    parts = [given, kinds, scalars] if form == "mlx" else [numbers, given, kinds]
    data = save(tensors, _flat(parts))
    with private_file(path) as file:
        file.write(data)


def _texts(messages: list) -> list[dict[str, str]]:
    """Messages as they are kept; raises InvalidInput."""
    try:
        return [{name: "" + own[name] for name in ("role", "content")} for own in messages]
    except (TypeError, KeyError):
        raise InvalidInput('a message has two texts: {"role": ..., "content": ...}') from None


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


def read_cache(
    path: Path, manifest: Manifest, made: dict[str, str], tokens: list[int] | None = None
) -> PromptCache:
    """Read a cache of a bundle's model; made: what the bundle's own are made of.

    tokens: what the cache holds, for a file that does not say. Raises InvalidInput.
    """
    file = _File(path)
    known, made_of, messages = file.record()
    if made_of:
        check_made(made_of, made)
    else:
        check_form(manifest, "mlx")
    if tokens and known and tokens != known:
        raise InvalidInput("the cache is of other tokens than those that are given")
    tokens = known or tokens or []
    if not tokens:
        raise InvalidInput(
            "it does not say which tokens it holds, as mlx-lm's own files do not; open it in "
            "Python: session.load_cache(file, tokens=[...])"
        )
    if len(tokens) > manifest.context:
        what = f"the cache is of {len(tokens)} tokens"
        raise InvalidInput(f"{what}, and the context is {manifest.context}")
    kinds, layers, found = file.kinds(), kept_layers(manifest), []
    if len(kinds) != len(layers):
        raise InvalidInput(f"{len(kinds)} layers have a cache, and here {len(layers)} keep one")
    for i, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
        attends = "keys" in layer.places
        if kind not in (ROWS if attends else ARRAYS):
            raise InvalidInput(f"layer {layer.number} has a {kind!r:.40}, which is not read")
        if attends:
            arrays = file.rows(i, kind, len(tokens), layer.rows(len(tokens)))
        else:
            arrays = file.arrays(i, layer.places)
        found.append(LayerCache(arrays, layer.window))
    if file.left:
        raise InvalidInput(f"the tensor {min(file.left)!r:.80} is of no layer")
    return PromptCache(tokens, len(tokens), found, made_of, messages)


class _File:
    """A safetensors file, whose header is checked; left: the tensors that were not read yet."""

    def __init__(self, path: Path):
        from safetensors import SafetensorError, safe_open

        try:
            check_file(path)
            self._file = safe_open(path, "pt")  # numpy has no bfloat16
        except (InvalidWeights, SafetensorError, OSError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            is_open = path.is_file() and os.access(path, os.R_OK)
            if is_open and np.fromfile(path, "<u4", 1).tolist() == [0x67677371]:
                reason = "it is llama.cpp's, and ane_serve.llama_cache.read_sequence reads it"
            raise InvalidInput(f"not a prompt cache, or cut short: {reason}") from None
        self._metadata, self.left = self._file.metadata() or {}, {*self._file.keys()}
        self._new = self._metadata.get("2.0") == ""

    def record(self) -> tuple[list[int], dict[str, str], list[dict[str, str]]]:
        """The tokens, what the cache is made of, and messages, as far as the file says."""
        text = self._metadata.get("0.ane_book" if self._new else "1.ane_book", "{}")
        try:
            record = json.loads(text)
            messages = _texts(record.get("messages", []))
            return [*record.get("tokens", [])], {**record.get("made_of", {})}, messages
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InvalidInput("its metadata 'ane_book' is damaged") from None

    def kinds(self) -> list[str]:
        """The class of each layer's cache."""
        start: str = "1." if self._new else "2."
        found: list[str] = []
        while (name := f"{start}{len(found)}") in self._metadata:
            found.append(self._metadata[name])
        return found

    def rows(self, i: int, kind: str, n: int, rows: int) -> Arrays:
        """Keys and values of the last of n tokens, in order, of cache i.

        The newest are the rows before `end`; in a ring that is full, those behind it are older.
        """
        parts = {name: self._take(f"{i}.{j}", 4) for j, name in enumerate(("keys", "values"))}
        (R, *others), keep = {part.get_shape()[2] for part in parts.values()}, 0
        if kind != "RotatingKVCache":
            offset = end = self._integer(f"{i}.2") if self._new else R
        elif self._new:
            offset, keep, _, end = (self._integer(f"{i}.{j}") for j in range(2, 6))
        else:  # keep, max_size, in Swift a step, offset, _idx
            texts = [self._metadata.get(f"0.{i}.{j}", "") for j in range(5)]
            numbers = [int(text) for text in texts if text.isdecimal() and len(text) < 10]
            keep, offset, end = (numbers[0], *numbers[-2:]) if len(numbers) > 3 else (0, 0, -1)
        if 0 < offset != n:
            raise InvalidInput(f"the file holds {offset} tokens, and {n} were given")
        is_ring = offset > end
        newest, behind = min(rows, end), (R - end if is_ring else 0)
        fits = offset == n >= end and not others and not (is_ring and (keep or n < R))
        if not fits or not 0 <= end <= R or rows - newest > behind:
            raise InvalidInput(
                f"cache {i} has {R} rows, {keep} of which stay, and row {end} behind the newest of "
                f"{offset} tokens; {rows} rows of {n} tokens are needed"
            )
        cuts = slice(R - (rows - newest), R), slice(end - newest, end)
        return {
            name: np.concatenate([part[0, :, cut].float().numpy() for cut in cuts], axis=1)
            for name, part in parts.items()
        }

    def arrays(self, i: int, names: Container[str]) -> Arrays:
        """Tail and memory of a layer without attention."""
        found, inner = {}, f"{i}.0" if self._new else f"{i}"
        if "tail" in names:
            found["tail"] = self._take(f"{inner}.0", 3)[0].float().numpy().T
        if "memory" in names:
            found["memory"] = self._take(f"{inner}.1", 4)[0].float().numpy()
        self.left -= {f"{i}.1", f"{i}.2"} if self._new else set()  # of a batch
        return found

    def _integer(self, name: str) -> int:
        return int(self._take(name, 0, WHOLE)[...])

    def _take(self, name: str, axes: int, types: tuple = FLOATS) -> Any:
        """A tensor to cut from, the first of whose axes has one entry."""
        if name not in self.left:
            raise InvalidInput(f"the tensor {name!r} is missing")
        self.left.discard(name)
        found = self._file.get_slice(name)
        shape, kind = found.get_shape(), found.get_dtype()
        if len(shape) != axes or shape[:1] not in ([], [1]) or kind not in types:
            raise InvalidInput(f"the tensor {name!r} is {kind} {shape}, which no cache has")
        return found
