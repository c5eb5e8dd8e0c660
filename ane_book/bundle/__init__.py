"""The bundle: a folder that holds a converted model and everything needed to run it.

    manifest.json       what the model is, where it came from, how it was converted, every shape
    layers_00-30.mlpackage ...   shards: functions `decode` (T = 1) and `prefill` (T = 64)
    head.mlpackage      final norm and vocabulary projection, the same two functions; head_0,
                        head_1, ... where the shard limit cuts it
    embedding.npy       float16 (V, C), memory-mapped by the host
    tokenizer.json      as Hugging Face `tokenizers` reads it
    golden.npz          reference: token ids, last logits and argmax of every position, from PyTorch
                        with the weights in fp16, whatever `quant` makes of them in the packages

Cut into projections, it has a package for every matrix instead (layer_00_q.mlpackage, ...), and
norms.npz for the host, which does all between them.

It is the contract between conversion and everything after it. A bundle appears whole or not at all,
and whoever opens one trusts none of it: every file is a regular one inside the folder, every number
is held to the sizes of files before memory is taken for it. `Bundle.verify` compares all bytes.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
import hashlib
import json
import os
from pathlib import Path
import stat
from typing import Annotated, Literal

from ane_book.bundle.arrays import map_array, read_arrays
from ane_book.errors import InvalidBundle, UnsupportedModel
from ane_book.models import DecoderConfig, find
import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

__all__ = ["Bundle", "Manifest", "Recipe", "projections", "regular_files", "seal"]

MAX_MANIFEST = 1 << 22  # bytes; a thousand layers in projections need less


def _inside(name: str) -> str:
    """The path of a file below the bundle's folder, and nothing else."""
    odd = not name.isprintable() or "\\" in name or ":" in name  # a drive, elsewhere a folder
    if odd or len(name) > 255 or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"{name[:80]!r} is not a path below the bundle's folder")
    return name


FileName = Annotated[str, AfterValidator(_inside)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
SHA256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Recipe(_Record):
    """How a model is converted: everything that shapes the graphs."""

    kv: Literal["state", "host"] = "state"
    context: Positive = 512  # S: slots of the cache
    prefill: Positive = 64  # T of the function `prefill`
    shard_bytes: Natural = 1_000_000_000  # limit for the weights of one shard
    head_rows: Positive = 16384  # limit for one part of the vocabulary
    argmax_output: bool = False
    quant: str = "none"  # of the layers: a name of conversion.quantize.SCHEMES
    quant_head: str = "none"
    partition: Literal["layers", "whole", "projections"] = "layers"

    @property
    def functions(self) -> dict[str, int]:
        """The functions of every package, and T, the tokens that a call of each takes."""
        return {"decode": 1, "prefill": self.prefill}


class Source(_Record):
    kind: str  # "gguf", "safetensors" or "random"
    files: list[str]
    fingerprint: str  # sha256 of the files' bytes


class Shard(_Record):
    package: FileName
    layers: tuple[Natural, Natural]  # [first, last)
    projection: str | None = None  # the one that it holds, of `projections`; None: whole layers


class Head(_Record):
    """Parts of the vocabulary projection, in order. A package holds one or several in a row."""

    splits: list[Positive]  # rows of the vocabulary in each part
    packages: list[FileName]  # the package of each part

    @property
    def package(self) -> str:
        """The first part's package; of most models it is that of all parts."""
        return self.packages[0]


def _read_config(fields):
    """The configuration as its architecture has it."""
    if not isinstance(fields, dict):
        return fields
    try:
        return find(fields.get("architecture")).Config.model_validate(fields)
    except UnsupportedModel as error:
        raise ValueError(str(error)) from None


class Tokenizer(_Record):
    file: FileName = "tokenizer.json"
    chat_template: str | None = None
    eos_token_ids: list[int] = []
    bos_token_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None


class Manifest(_Record):
    """`manifest.json`, version 2; version 1 had no hashes."""

    format: Literal["ane-book bundle 2"]
    name: str
    config: Annotated[SerializeAsAny[DecoderConfig], BeforeValidator(_read_config)]
    recipe: Recipe
    source: Source
    shards: list[Shard]
    head: Head
    embedding: FileName = "embedding.npy"
    golden: FileName = "golden.npz"
    norms: FileName | None = None  # the host's share of the weights, in a bundle of projections
    tokenizer: Tokenizer
    files: dict[FileName, Natural]  # every file of the bundle but this one, with its size in bytes
    sha256: dict[FileName, SHA256]  # of the same files
    tools: dict[str, str]  # versions that made it
    seal: str = ""  # of all fields above: see `seal`

    @model_validator(mode="after")
    def _check(self) -> "Manifest":
        if self.sha256.keys() != self.files.keys():
            raise ValueError("files and sha256 name different files")
        used = [self.embedding, self.golden, self.tokenizer.file]
        used += [self.norms] if self.norms else []
        used += [f"{package}/Manifest.json" for package in self.packages]
        for name in used:
            if name not in self.files:
                raise ValueError(f"{name!r} is used, but not among the files")
        _check_numbers(self)
        _check_parts(self)
        return self

    @property
    def packages(self) -> list[str]:
        """Every package, in the order of a token's way through them."""
        return list(dict.fromkeys([shard.package for shard in self.shards] + self.head.packages))


def projections(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """The seven matrices of a layer in the order of their use: name -> (outputs, inputs)."""
    C, F, D = config.hidden_size, config.intermediate_size, config.head_dim
    Q, KV = config.num_heads * D, config.num_kv_heads * D
    return {
        "q": (Q, C), "k": (KV, C), "v": (KV, C), "o": (C, Q),
        "gate": (F, C), "up": (F, C), "down": (C, F),
    }  # fmt: skip


def seal(fields: dict) -> str:
    """sha256 of what manifest.json says, the seal itself left out."""
    sealed = {name: value for name, value in fields.items() if name != "seal"}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def _check_numbers(manifest: Manifest) -> None:
    """Hold what asks for memory to the sizes of files; ValueError says what is out of bounds."""
    config, recipe = manifest.config, manifest.recipe
    if not 2 <= recipe.prefill <= recipe.context <= config.max_position:
        raise ValueError(
            f"a context of {recipe.context} and a prefill of {recipe.prefill} tokens do not fit "
            f"the model's {config.max_position} positions"
        )
    least = 2 * config.hidden_size * (config.vocab_size + 2 * config.num_layers)  # fp16, 2 norms
    if least > sum(manifest.files.values()):
        raise ValueError(
            f"{config.num_layers} layers of {config.hidden_size} and {config.vocab_size} tokens "
            "are more than the files can hold"
        )


def _check_parts(manifest: Manifest) -> None:
    """Every layer, or each of its projections, has its package, and so has every part of the head.

    Raises ValueError.
    """
    config, head, cut = manifest.config, manifest.head, manifest.recipe.partition == "projections"
    parts = list(projections(config)) if cut else [None]
    layer = 0  # before which all layers are there
    for i, shard in enumerate(manifest.shards):
        first, last = shard.layers
        part = parts[i % len(parts)]
        if (
            first != layer
            or shard.projection != part
            or (last != first + 1 if cut else last <= first)
        ):
            raise ValueError(f"the shards hold layers {first} to {last - 1} out of order")
        layer = last if part == parts[-1] else layer
    if layer != config.num_layers or len(manifest.shards) % len(parts):
        raise ValueError(f"the shards hold layers 0 to {layer - 1} of {config.num_layers}")
    if cut != (manifest.norms is not None):
        raise ValueError("norms belong to a bundle in projections, and to no other")
    if sum(head.splits) != config.vocab_size:
        raise ValueError(f"head splits do not add up to the vocabulary of {config.vocab_size}")
    if len(head.packages) != len(head.splits):
        raise ValueError("not every part of the head has a package")


def regular_files(folder: Path) -> dict[str, int]:
    """Bytes of every regular file below a folder, by its path in it; links are not followed."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            with suppress(FileNotFoundError):  # somebody is at work here
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found[path.relative_to(folder).as_posix()] = status.st_size
    return found


@dataclass(frozen=True, eq=False)
class Bundle:
    """An opened bundle."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Open a bundle's folder, and check what can be checked without reading all of it.

        Raises InvalidBundle when the manifest cannot be read, is not one of ours or contradicts
        itself, or when a file is missing, cut short, or no regular file. That the packages have the
        manifest's shapes is checked by whoever opens them (`Session`), their bytes by `verify`.
        """
        path = Path(path)
        bundle = cls(path, _read_manifest(path))
        bundle._check_files()
        _ = bundle.embedding
        return bundle

    @property
    def config(self) -> DecoderConfig:
        return self.manifest.config

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @cached_property
    def embedding(self) -> np.ndarray:
        """The embedding (V, C), float16, memory-mapped."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        return map_array(self.path / self.manifest.embedding, shape, np.float16)

    def golden(self) -> dict[str, np.ndarray]:
        """The reference: `tokens` (T,), `logits` (V,) of the last, `argmax` (T,) of every one."""
        T, V = (self.recipe.prefill,), (self.config.vocab_size,)
        wanted = {"tokens": (T, np.int64), "logits": (V, np.float32), "argmax": (T, np.int64)}
        return read_arrays(self.path / self.manifest.golden, wanted)

    def norms(self) -> dict[str, np.ndarray]:
        """What the host multiplies with, in a bundle of projections, float16: `layers` (L, 2, C),
        `final` (C,) and, where there are norms of queries and keys, `qk` (L, 2, D)."""
        config = self.config
        L, C, D = config.num_layers, config.hidden_size, config.head_dim
        wanted = {"layers": ((L, 2, C), np.float16), "final": ((C,), np.float16)}
        if "attention.prepare.weight" in find(config.architecture).parameters(config):
            wanted["qk"] = ((L, 2, D), np.float16)
        return read_arrays(self.path / self.manifest.norms, wanted)

    def verify(self) -> None:
        """Read every file, and raise InvalidBundle with the names of those that have changed."""
        changed = []
        for name, expected in self.manifest.sha256.items():
            try:
                with (self.path / name).open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise InvalidBundle(f"{self.path / name}: {error.strerror}") from None
            if found != expected:
                changed.append(name)
        if self.manifest.seal != seal(json.loads((self.path / "manifest.json").read_bytes())):
            changed.append("manifest.json")
        if changed:
            raise InvalidBundle(
                f"{self.path}: not as it was written: {', '.join(changed)}; convert the model again"
            )

    def _check_files(self) -> None:
        found = regular_files(self.path)
        for name, size in self.manifest.files.items():
            if found.get(name) != size:
                here = name in found
                state = f"has {found[name]:,} bytes" if here else "is missing, or no regular file"
                raise InvalidBundle(
                    f"{self.path / name} {state}; manifest.json says {size:,} bytes; convert the "
                    "model again"
                )


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST:
            raise InvalidBundle(
                f"{path}: not a regular file of at most {MAX_MANIFEST:,} bytes, so not a bundle's"
            )
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidBundle(
            f"{folder}: no manifest.json ({reason}), so not a bundle; give a folder that "
            "`ane-book convert` wrote"
        ) from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    place = place.encode("unicode_escape").decode()[:100] or "the file"
    mend = "convert the model again"
    if place == "format":
        mend = f"made by another version: `ane-book convert MODEL --out {folder} --force`"
    raise InvalidBundle(f"{path}: {place}: {first['msg'][:300]}; {mend}")
