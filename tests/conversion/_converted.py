"""Tiny conversions of every family, cache, form and scheme, and digests of what they write.

Weights are sixteenths, which every machine computes with exactly, so that programs and weights are
everywhere the same as long as the packages are. What PyTorch computes of them is not.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
import json
from pathlib import Path
import re

import _encoders
from _encoders import (
    FAMILIES,
    dense_layers,
    tiny_bert,
    tiny_encoder,
    write_encoder,
)
import _taggers
from _taggers import tiny_tagger, write_tagger
from _tiny import REPRESENTATIVES, TINY, VARIANTS, tiny_model, write_checkpoint
import _zaya
from _zaya import tiny_zaya
import ane_book
from ane_book.errors import AneBookError
import torch

#: Recipes of decoders; every family is converted by each.
DECODER: dict[str, dict] = {
    "state": {"kv": "state"},
    "host": {"kv": "host"},
    "packages": {"kv": "host", "shard_limit": 250_000, "head_rows": 100},
    "apple, tiers, verify": {"form": "apple", "kv": "host", "tiers": (16,), "verify": 4},
    "apple, select": {"form": "apple", "kv": "state", "state_write": "select"},
    "one, int8, tiers": {"functions": "one", "prefill": None, "quant": "int8", "tiers": (16,)},
    "slots, int8": {"kv": "host", "lora_slots": 4, "quant": "int8"},
    "token, tanh": {"kv": "state", "argmax_output": True, "silu": "tanh", "partition": "whole"},
    "auto": {"kv": "host", "quant": "auto:6"},
}
#: Recipes of mixtures of experts, and of what takes whole texts.
EXPERTS = {"apart": {"experts": "dispatch"}, "apart, host": {"experts": "dispatch", "kv": "host"}}
TEXTS = {"plain": {}, "int8": {"quant": "int8"}, "packages": {"shard_limit": 250_000}}
PREFILL = {"prefill": 8}
#: Ways to store weights, which a few families are converted by; the others are above.
SCHEMES = ("int8-tensor", "int4", "int4-channel", "lut8", "lut6", "lut4")

#: How a checkpoint is written, and the recipe that it is converted by.
Case = tuple[Callable[[Path], Path], dict]


def _cases() -> Iterator[tuple[str, Case]]:
    for family in TINY:
        for variant in VARIANTS if family in REPRESENTATIVES else ["usual"]:
            changes = VARIANTS[variant](family)
            own = DECODER if variant == "usual" else {n: DECODER[n] for n in ("state", "host")}
            for name, recipe in own.items():
                yield f"{family} {variant}: {name}", (_decoder(family, changes), PREFILL | recipe)
    for family in ("llama", "qwen3_5_text"):
        for scheme in SCHEMES:
            yield f"{family} usual: {scheme}", (_decoder(family, {}), PREFILL | {"quant": scheme})
    for size in _zaya.SIZES:
        for name, recipe in (DECODER | EXPERTS).items():
            write = _saved(tiny_zaya, size, write_checkpoint)
            yield f"zaya {size}: {name}", (write, PREFILL | recipe)
    for size in _taggers.SIZES:
        for name, recipe in (TEXTS | {"apart": EXPERTS["apart"]}).items():
            yield f"tagger {size}: {name}", (_saved(tiny_tagger, size, write_tagger), recipe)
    for name, recipe in TEXTS.items():
        for size in _encoders.SIZES:
            yield f"bert {size}: {name}", (_saved(tiny_bert, size, write_encoder), recipe)
        for family in FAMILIES:
            yield f"encoder {family}: {name}", (_encoder(family), recipe)


def _saved(make: Callable, size: str, write: Callable) -> Callable[[Path], Path]:
    return lambda folder: write(_sixteenths(make(size)), folder)


def _decoder(family: str, changes: dict) -> Callable[[Path], Path]:
    return lambda folder: write_checkpoint(_sixteenths(tiny_model(family, **changes)), folder)


def _encoder(family: str) -> Callable[[Path], Path]:
    pooling = FAMILIES[family][2]

    def write(folder: Path) -> Path:
        dense = tuple(_sixteenths(layer) for layer in dense_layers(family))
        return write_encoder(_sixteenths(tiny_encoder(family)), folder, pooling, dense=dense)

    return write


def _sixteenths(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            count = torch.arange(value.numel(), dtype=torch.int64)
            levels = (count * 2654435761 >> 7) % 16 - 8  # no two rows alike
            value.copy_((levels / 16).reshape(value.shape))
    return model


CASES: dict[str, Case] = dict(_cases())


def convert(case: str, folder: Path) -> dict[str, str]:
    """What a conversion writes: sha256, its first 16 digits, of the files of each kind.

    manifest: without the digests of files that PyTorch's numbers are in. golden: those files,
    which are the same on one machine. Of a recipe that is refused, the error.
    """
    write, recipe = CASES[case]
    recipe = {"context": 32} | recipe
    try:
        bundle = ane_book.convert(str(write(folder / "model")), folder / "bundle", **recipe)
    except AneBookError as error:
        return {"refused": type(error).__name__}
    found = {kind: sha256() for kind in ("programs", "weights", "manifest", "golden", "others")}
    for file in sorted(path for path in bundle.path.rglob("*") if path.is_file()):
        name = file.relative_to(bundle.path).as_posix()
        content = file.read_bytes()
        if name == "manifest.json":
            content = _without_numbers(json.loads(content))
        found[_kind(name)].update(name.encode() + b"\0" + content)
    return {kind: digest.hexdigest()[:16] for kind, digest in found.items()}


def _kind(name: str) -> str:
    if name.startswith(("golden", "evidence")):
        return "golden"
    kinds = {r"manifest\.json": "manifest", r".*\.mlmodel": "programs", r".*\.bin": "weights"}
    return next((kind for form, kind in kinds.items() if re.fullmatch(form, name)), "others")


def _without_numbers(manifest: dict) -> bytes:
    del manifest["tools"], manifest["seal"]
    for name in [name for name in manifest["sha256"] if _kind(name) == "golden"]:
        del manifest["sha256"][name]
    return json.dumps(manifest).encode()
