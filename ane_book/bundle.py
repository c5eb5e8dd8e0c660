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

It is the contract between conversion and everything after it. A bundle appears whole or not at all.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ane_book.config import DecoderConfig
from ane_book.errors import InvalidBundle
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["Bundle", "Manifest", "Recipe", "projections"]

FORMAT = "ane-book bundle 1"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Recipe(_Record):
    """How a model is converted: everything that shapes the graphs."""

    kv: Literal["state", "host"] = "state"
    context: int = 512  # S: slots of the cache
    prefill: int = 64  # T of the function `prefill`
    shard_bytes: int = 1_000_000_000  # limit for the weights of one shard
    head_rows: int = 16384  # limit for one part of the vocabulary
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
    package: str
    layers: tuple[int, int]  # [first, last)
    projection: str | None = None  # the one that it holds, of `projections`; None: whole layers


class Head(_Record):
    """Parts of the vocabulary projection, in order. A package holds one or several in a row."""

    splits: list[int]  # rows of the vocabulary in each part
    packages: list[str]  # the package of each part

    @property
    def package(self) -> str:
        """The first part's package; of most models it is that of all parts."""
        return self.packages[0]


class Tokenizer(_Record):
    file: str = "tokenizer.json"
    chat_template: str | None = None
    eos_token_ids: list[int] = []
    bos_token_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None


class Manifest(_Record):
    """`manifest.json`, version 1."""

    format: Literal["ane-book bundle 1"] = FORMAT
    name: str
    config: DecoderConfig
    recipe: Recipe
    source: Source
    shards: list[Shard]
    head: Head
    embedding: str = "embedding.npy"
    golden: str = "golden.npz"
    norms: str | None = None  # the host's share of the weights, in a bundle of projections
    tokenizer: Tokenizer
    files: dict[str, int]  # every file of the bundle but this one, with its size in bytes
    tools: dict[str, str]  # versions that made it

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


@dataclass(frozen=True, eq=False)
class Bundle:
    """An opened bundle."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Open and check a bundle's folder.

        Raises InvalidBundle when the manifest cannot be read or a file is missing or cut short.
        That the packages have the manifest's shapes is checked by whoever opens them (`Session`).
        """
        path = Path(path)
        manifest_path = path / "manifest.json"
        try:
            manifest = Manifest.model_validate_json(manifest_path.read_bytes())
        except OSError:
            raise InvalidBundle(
                f"{path}: no manifest.json, so not a bundle; give a folder that `ane-book convert` "
                "wrote"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise InvalidBundle(f"{manifest_path}: {place}: {first['msg']}") from None
        bundle = cls(path, manifest)
        bundle._check_files()
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
        return np.load(self.path / self.manifest.embedding, mmap_mode="r")

    def golden(self) -> dict[str, np.ndarray]:
        """The reference: `tokens` (T,), `logits` (V,) of the last, `argmax` (T,) of every one."""
        with np.load(self.path / self.manifest.golden) as arrays:
            return dict(arrays)

    def _check_files(self) -> None:
        manifest, config = self.manifest, self.config
        for name, size in manifest.files.items():
            file = self.path / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found:,} bytes"
                raise InvalidBundle(
                    f"{file} {state}; manifest.json says {size:,} bytes. Convert the model again"
                )
        cut = manifest.recipe.partition == "projections"
        parts = list(projections(config)) if cut else [None]
        wanted = [(layer, part) for layer in range(config.num_layers) for part in parts]
        found = [(layer, s.projection) for s in manifest.shards for layer in range(*s.layers)]
        if found != wanted:
            layers = [layer for layer, _ in found]
            raise InvalidBundle(
                f"{self.path}: the shards hold layers {layers}, the model has {config.num_layers}"
                f"{', each in projections ' + ', '.join(parts) if cut else ''}"
            )
        if sum(manifest.head.splits) != config.vocab_size:
            raise InvalidBundle(
                f"{self.path}: head splits {manifest.head.splits} do not add up to the vocabulary "
                f"of {config.vocab_size}"
            )
        if len(manifest.head.packages) != len(manifest.head.splits):
            raise InvalidBundle(f"{self.path}: not every part of the head has a package")
        shape, dtype = self.embedding.shape, self.embedding.dtype
        if shape != (config.vocab_size, config.hidden_size) or dtype != np.float16:
            raise InvalidBundle(
                f"{self.path / manifest.embedding}: {dtype}{shape}; manifest.json says "
                f"float16{(config.vocab_size, config.hidden_size)}"
            )
