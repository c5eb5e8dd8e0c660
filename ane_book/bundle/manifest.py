"""`manifest.json`: what a bundle is for, its programs as they are, and what the host does.

`Manifest` says how to read it; its JSON schema, for programs in other languages, is
`research/manifest.schema.json`. Every manifest, read or made, is checked against that contract.
"""

from collections import Counter
from math import prod
from typing import Final, Literal

from ane_book.bundle.contract import check_packages, handed
from ane_book.bundle.parts import (
    SHA256,
    Adapters,
    Embedding,
    FileName,
    Natural,
    Part,
    Positive,
    Record,
    Source,
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
    """What a bundle holds, version 6.

    It is enough to run a bundle, in any language, and knows no architecture. Text generation:

    1.  A token's row of `embedding`, times `host.embedding_scale`, is a column of `hidden`
        (1, C, 1, T); a call of n < T tokens has columns beyond them, whose results are ignored.
    2.  Every part "layers" of `packages` is called in order, by its function of T tokens. Of its
        inputs, `hidden` is the hidden state, `position` (1,) the slot of the first token, a rotary
        table or a mask what `host` says, `x` with a result `new_x` a cache (n, K, S, D) or a tail
        (n, R, 1, W), and any other one the result of that name of a part before it. A cache is what
        is called `keys`, `values` or `cache`, perhaps with more behind it. The result
        `hidden_out` is the next hidden state. `per_layer` (n, P, 1, T) has, for each of the part's
        layers, its P numbers of the token's row of `per_layer`, in the order of layers. The rows
        `new_x` (n, K, T, D) go into the cache `x` at `position`. The columns `new_x` (n, R, 1, T)
        of a tail belong to the call's tokens; `x` is those of the W tokens before `position`. A
        host that keeps the columns of all tokens can go back to any of them. A layer without a
        cache may have a memory: an input `memory` (n, H, Dv, Dk), in whose place the result
        `new_memory` comes, or a state of that name. It is of all tokens up to the last that `real`
        (1, 1, 1, T) names: 1 for each of the n tokens, 0 beyond. To go back, a host needs a copy of
        that time; without one it begins at the first token. A part with both has its keys and
        values in one state `cache`, keys first; so has a part with caches of two head sizes, in
        `cache` and `cache_local`. Caches, columns before the first token and states are zeros at
        first; they are kept from call to call, and all functions of a package share its states.
        A function `verify` of K tokens does all decoding where it is there: the context is cut into
        blocks of K slots, and a call begins at its block, with the tokens of the block so far given
        again, and guesses behind them.
    3.  Where logits are wanted, the parts "head" are called with the hidden state likewise.
        The parts `logits_0`, `logits_1`, ... (1, V_i, 1, T) in a row are the logits; or `token` (1,
        T) is the likeliest token.

    With `form` "apple" tokens are last: a mask is (1, S + T, 1, T), a rotary table (1, D, 1, T), a
    cache (n, K * D, 1, S), its rows `new_x` (n, K * D, 1, T). They hold the numbers from above,
    rows and columns exchanged. A tail is as above.

    With `adapters`, y of every projection in a layer is W x + B (A x), and the parts "layers" have
    inputs for A and B. For a slot s of P matrices with R rows each in A and C_out rows in all, s_a
    is (n, P * R, 1, C_in) and s_b (n, C_out, 1, R): for each of the n layers, the matrices' A below
    each other, and their B. B holds the adapter's scale, and zeros everywhere are no adapter. What
    is in the cache belongs to the adapter that made it.

    A part that gives `x` (1, C, 1, T) and `gates` (1, E, 1, T) has E experts after it, the parts
    "experts" by their numbers. One takes `x`, and its own row of the gates as `gate` (1, 1, 1, T),
    and gives `y` (1, C, 1, T). Only those are called of which the gate of one of the n tokens is
    not 0; what they give is added up in single precision, and the sum is the `y` of the next part.

    Functions that attend to a cache are there once for every tier, each with its own number of
    `slots`: those of the whole context as `decode`, `prefill`, ..., those of S slots as `decode_sS`
    and so on. A call of T tokens at `position` may take any tier that has `position` + T slots; the
    fewer, the faster. Who changes the tier hands on the rows before `position`, and tails as they
    are: caches and states differ in S alone. Parts without `slots` are the same in every tier.

    Embedding, that is texts to vectors:

    1.  A token's row of `embedding`, times `host.embedding_scale`, plus the row of
        `vectors.positions`, if there are any, for its place in its text, is a column of `hidden`
        (1, C, 1, T). Texts may share a call, side by side. `mask` (1, 1, T, T) is 0 where row and
        column are tokens of one text, and -40,000 elsewhere; columns beyond the texts see each
        other alone. With `vectors.causal` it is -40,000 also where the column is behind the row,
        and with `host.masks` where the two are further apart than the mask's number. Rotary tables
        are what `host` says, by a token's place in its text.
    2.  Every part "layers" is called in order, by the same function of T tokens; `hidden_out` is
        the hidden state for the next one.
    3.  The mean of a text's columns, or the first or the last of them, is the text's. Where there
        is a part "head", it is called with the texts' columns side by side as `hidden`, by a
        function that has room for them, and gives `vector` (1, E, 1, T) in their place.
    4.  The column, cut to `vectors.dimensions` where there are any, divided by its length, is the
        text's vector.

    Token classification, that is labels of tokens: the same, but for a column of `hidden` being the
    row of `embedding` alone; rotary tables are what `host` says, by a token's place in its text;
    `mask` is -40,000 also where row and column are more than `tags.window` apart; and the last
    package gives `logits` (1, N, 1, T), a score for each of the N `tags.labels`. A text that is
    longer than a call goes in windows: with L layers, the labels of a token depend on the L *
    `tags.window` tokens on each side.

    Letters: C hidden size, T tokens of a call, S slots of the cache, n layers of a
    package, K key/value heads, D head size, V vocabulary; R channels and W columns of a tail.
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
    form: Form = Field(
        default="rows",
        description="Where tokens are in caches, masks and rotary tables: see the class",
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

    def per_layer_shape(self, part: Part, tokens: int) -> tuple[int, int, int, int] | None:
        """(n, P, 1, T) of a part's layers; None where layers have no inputs of their own."""
        if self.per_layer is None or part.part != "layers":
            return None
        layers = self.shards[-1].span.stop
        return len(part.span), self.per_layer.shape[1] // (layers or 1), 1, tokens

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
        ends = [f.outputs for f in functions if "hidden_out" in f.outputs]
        return {n: t.shape[1] for outputs in ends for n, t in handed(outputs).items()}

    @property
    def splits(self) -> list[int]:
        """Rows of each part of the vocabulary; [] where the head gives the token."""
        parts: dict[str, int] = {}
        for part in self.head:
            outputs = next(iter(part.functions.values())).outputs
            parts |= {name: type_.shape[1] for name, type_ in outputs.items()}
        return [rows for name, rows in parts.items() if name != "token"]

    @property
    def argmax_output(self) -> bool:
        """Whether the head gives the likeliest token instead of logits."""
        return not self.splits
