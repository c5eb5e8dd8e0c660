"""A manifest with one thing changed contradicts the rest of it, or its packages, and is refused."""

from collections.abc import Callable, Iterator
from copy import deepcopy
import json
from pathlib import Path
from random import Random
import shutil

from _encoders import tiny_bert, write_encoder
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidBundle, InvalidInput
import pytest

CHANGES = 60  # of each bundle, besides those of whole packages
#: What packages take and give; all else in a manifest is held to files, or is for the record.
HELD = ("packages", "layers", "adapters", "per_layer", "vectors", "context", "form")
FREE = {
    "prompts", "default_prompt", "dimensions", "similarity", "causal", "pooling", "module",
    "memory_scale", "neighbours",
}  # fmt: skip
#: What nobody asks before a program is called, or at all.
OPEN = {"experts": {"dtype"}, "slots": {"layers"}, "texts": {"layers", "encode_32"}}


def embedder(folder: Path) -> Bundle:
    source = write_encoder(tiny_bert("odd"), folder / "model")
    return ane_book.convert(str(source), out=folder / "made")


#: Caches in tiers, slots for adapters, inputs of layers, experts as programs, texts.
KINDS: dict[str, Callable[..., Bundle]] = {
    "tiers": lambda decoder, *_: decoder("llama", kv="state", context=48, tiers=(16, 20))[1],
    "slots": lambda decoder, *_: decoder("llama", kv="host", lora_slots=4)[1],
    "columns": lambda decoder, *_: decoder("llama", kv="state", form="apple")[1],
    "inputs of layers": lambda decoder, *_: decoder("gemma4_text", kv="state")[1],
    "experts": lambda decoder, tagger, folder: tagger("narrow", experts="dispatch")[1],
    "texts": lambda decoder, tagger, folder: embedder(folder),
}


def places(value, free: set[str], path: tuple = ()) -> Iterator[tuple]:
    """Every place within a JSON value that says something."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if inner is not None and key not in free:
            yield (*path, key)
            if isinstance(inner, dict | list):
                yield from places(inner, free, (*path, key))


def changed(fields: dict, path: tuple, rng: Random) -> dict:
    """A copy in which one thing is another number, type or name, or is not there."""
    made = deepcopy(fields)
    inner, last = made, path[-1]
    for key in path[:-1]:
        inner = inner[key]
    if isinstance(inner[last], int) and not isinstance(inner[last], bool):
        inner[last] += rng.choice([-1, 1, 10**9])
    elif isinstance(inner[last], str):
        inner[last] = "fp32" if inner[last] == "fp16" else "other"
    elif isinstance(inner, dict) and isinstance(inner[last], dict):
        inner[rng.choice(["other", f"{last}_0", ""])] = inner.pop(last)
    else:
        del inner[last]
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_manifest_can_be_changed_alone(kind, tiny_bundle, tagger, tmp_path):
    bundle = KINDS[kind](tiny_bundle, tagger, tmp_path)
    copy, rng = Path(shutil.copytree(bundle.path, tmp_path / "b")), Random(kind)
    fields = json.loads((copy / "manifest.json").read_text())
    held, free = {name: fields[name] for name in HELD}, FREE | OPEN.get(kind, set())
    every = [path for path in places(held, free) if path != ("layers",)]
    whole = [path for path in every if path[0] == "packages" and len(path) == 2]
    for path in whole + rng.sample(every, min(CHANGES, len(every))):
        other = changed(fields, path, rng)
        (copy / "manifest.json").write_text(json.dumps(other))
        with pytest.raises((InvalidBundle, InvalidInput)) as caught:
            ane_book.load(copy)
        assert "\n" not in str(caught.value), path
