"""`manifest.json`: what a bundle is for, its programs as they are, and what the host does.

`research/manifest.md` says how a host runs a bundle by it, and `research/manifest.schema.json` is
its JSON schema. Every manifest, read or made, is checked against that contract.
"""

from collections import Counter
from math import prod
from typing import Final, Literal

from ane_book.bundle.contract import check_packages
from ane_book.bundle.parts import (
    SHA256,
    Adapters,
    Embedding,
    FileName,
    Layer,
    Natural,
    Part,
    Positive,
    Record,
    Source,
    StoreEntry,
    Tags,
    Tokenizer,
    Vectors,
)
from ane_book.host import Host
from ane_book.layout import LAYOUTS, MEMORY, Form, Layout
from ane_book.options import Recipe, tier_name
from pydantic import Field, model_validator

FORMAT: Final = "ane-book bundle 6"


class Manifest(Record):
    """What a bundle holds, version 6: all that a host needs to run it, in any language.

    research/manifest.md says how, task by task. Letters: C hidden size, T tokens of a call, S slots
    of the cache, n layers of a package, K key/value heads, D head size, V vocabulary; R channels
    and W columns of a tail.
    """

    format: Literal["ane-book bundle 6"] = FORMAT
    name: str
    task: Literal["text-generation", "embedding", "token-classification"]
    packages: list[Part] = Field(min_length=1, description="In the order of a token's way")
    embedding: Embedding
    per_layer: Embedding | None = Field(
        default=None, description="What a token gives to all layers, rows (L * P,); null: nothing"
    )
    context: Positive = Field(
        description="Most tokens of prompt and answer together, slots of the largest cache; the "
        "most tokens of a text"
    )
    host: Host
    layers: list[Layer] = Field(
        default=[], description="Of the task text-generation; []: an earlier version converted it"
    )
    form: Form = Field(
        default="rows",
        description="Where tokens are in caches, masks and rotary tables: see research/manifest.md",
    )
    adapters: Adapters | None = Field(
        default=None, description="Slots for a LoRA adapter; null: the layers have none"
    )
    vectors: Vectors | None = Field(default=None, description="Of the task embedding")
    tags: Tags | None = Field(default=None, description="Of the task token-classification")
    tokenizer: Tokenizer
    golden: FileName = Field(
        default="golden.npz", description="Token ids, and what PyTorch says of them"
    )
    model: dict = Field(description="For the record: the model in numbers; running needs none")
    recipe: Recipe = Field(description="For the record: how it was converted")
    source: Source = Field(description="For the record: what it was converted from")
    tools: dict[str, str] = Field(description="For the record: versions of what converted it")
    files: dict[FileName, Natural] = Field(description="Every file but this one, with its bytes")
    sha256: dict[FileName, SHA256] = Field(description="Of the same files")
    seal: str = Field(default="", description="sha256 of all fields above as JSON with sorted keys")

    @model_validator(mode="after")
    def _check(self) -> "Manifest":
        if self.sha256.keys() != self.files.keys():
            raise ValueError("files and sha256 name different files")
        given = self.per_layer, self.vectors and self.vectors.positions
        tables = [self.embedding, *(table for table in given if table)]
        used = [self.golden, self.tokenizer.file, *(table.file for table in tables)]
        used += [f"{part.package}/Manifest.json" for part in self.packages]
        for name in used:
            if name not in self.files:
                raise ValueError(f"{name!r} is used, but not among the files")
        for table in tables:
            if 2 * prod(table.shape) > self.files[table.file]:
                raise ValueError(f"{table.file}: {table.shape} is more than its file holds")
        check_packages(self)
        return self

    @property
    def vector_size(self) -> int:
        """Numbers of what a text becomes: E, or C without a head."""
        if self.task == "text-generation" or not self.head:
            return self.embedding.shape[1]
        return self.splits[0]

    @property
    def layout(self) -> Layout:
        """Where tokens are in caches, masks and rotary tables."""
        return LAYOUTS[self.form]

    @property
    def has_memory(self) -> bool:
        """Whether some layers have a memory, which is of all tokens up to the last one."""
        functions = [next(iter(part.functions.values())) for part in self.shards]
        return any(MEMORY in function.states | function.inputs for function in functions)

    @property
    def functions(self) -> dict[str, int]:
        """The functions of every package: name -> T, the tokens that a call takes."""
        first = self.packages[0].functions.items()
        return {name: f.tokens for name, f in first if f.slots in (None, self.context)}

    @property
    def reading(self) -> str:
        """The function that reads a prompt: "prefill", or the only one there is."""
        return "prefill" if "prefill" in self.functions else next(iter(self.functions))

    @property
    def tiers(self) -> list[int]:
        """Slots S of every tier, ascending; the last is the context. [] without a cache."""
        functions = self.packages[0].functions.values()
        return sorted({f.slots for f in functions if f.slots is not None})

    @property
    def tiered(self) -> dict[str, tuple[int, int]]:
        """The functions of packages with a cache, in all tiers: name -> (T, S)."""
        return {
            tier_name(name, S, self.context): (T, S)
            for S in reversed(self.tiers)
            for name, T in self.functions.items()
        }

    @property
    def names(self) -> dict[str, str]:
        """The functions of all tiers: name -> name in packages without a cache."""
        tiers = reversed(self.tiers or [self.context])
        return {tier_name(n, S, self.context): n for S in tiers for n in self.functions}

    @property
    def shards(self) -> list[Part]:
        """The packages of the layers."""
        return [part for part in self.packages if part.part == "layers"]

    def places(self) -> list[StoreEntry]:
        """Where everything is that layers keep, in the order of packages.

        A package whose layers read the cache of a layer in another one has a copy, its first entry.
        Raises ValueError where `layers` and the packages do not fit.
        """
        found = []
        for number, part in enumerate(self.shards):
            for store in next(iter(part.functions.values())).stores(self.layout):
                joined = store.name.startswith("cache")
                names = [store.name.replace("cache", own) for own in ("keys", "values")]
                names = names if joined else [store.name]
                keep = {n: [i for i in part.span if n in self.layers[i].stores] for n in names}
                if sum(map(len, keep.values())) < store.n:
                    for name, own in keep.items():
                        before = self.layers[: part.span.start]
                        own[:0] = [i for i, layer in enumerate(before) if name in layer.stores][-1:]
                entries = [(layer, name) for name, own in keep.items() for layer in own]
                if len(entries) != store.n:
                    raise ValueError(f"{part.package}: {store.name} of {store.n} layers: {entries}")
                found += [StoreEntry(*own, number, store, i) for i, own in enumerate(entries)]
        return found

    @property
    def experts(self) -> list[int]:
        """The number of experts of every layer where they are programs; [] where they are not."""
        parts = [part.layers for part in self.packages if part.part == "experts"]
        return list(Counter(parts).values())

    @property
    def head(self) -> list[Part]:
        """The packages of the head."""
        return [part for part in self.packages if part.part == "head"]

    @property
    def handed(self) -> dict[str, int]:
        """R of every value (1, R, 1, T) that layers of one part hand to those of the next one."""
        functions = [next(iter(part.functions.values())) for part in self.shards]
        ends = [function.handed for function in functions if "hidden_out" in function.outputs]
        return {name: shape[1] for handed in ends for name, shape in handed.items()}

    @property
    def splits(self) -> list[int]:
        """Rows of each part of the vocabulary; [] where the head gives the token."""
        parts: dict[str, int] = {}
        for part in self.head:
            outputs = next(iter(part.functions.values())).outputs
            parts |= {name: (*type_.shape, 0, 0)[1] for name, type_ in outputs.items()}
        return [rows for name, rows in parts.items() if name != "token"]

    @property
    def argmax_output(self) -> bool:
        """Whether the head gives the likeliest token instead of logits."""
        return not self.splits
