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

CHANGES = 120  # of each bundle
#: What packages take and give; all else in a manifest is held to files, or is for the record.
HELD = ("packages", "layers", "adapters", "per_layer", "vectors", "context", "form")
FREE = {"prompts", "default_prompt", "dimensions", "similarity", "causal", "pooling"}


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


def places(value, path: tuple = ()) -> Iterator[tuple]:
    """Every place within a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list) and key not in FREE:
            yield from places(inner, (*path, key))


def changed(fields: dict, path: tuple, rng: Random) -> dict:
    """A copy in which one thing is another number, type or name, or is not there."""
    made = deepcopy(fields)
    inner, last = made, path[-1]
    for key in path[:-1]:
        inner = inner[key]
    if isinstance(inner[last], int) and not isinstance(inner[last], bool):
        inner[last] += rng.choice([-1, 1, 10**9])
    elif inner[last] == "fp16":
        inner[last] = "fp32"
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
    every = [path for path in places(fields) if path[0] in HELD and path[-1] not in FREE]
    for path in rng.sample(every, min(CHANGES, len(every))):
        other = changed(fields, path, rng)
        if other == fields:
            continue
        (copy / "manifest.json").write_text(json.dumps(other))
        with pytest.raises((InvalidBundle, InvalidInput)) as caught:
            ane_book.load(copy)
        assert "\n" not in str(caught.value), path
