"""`manifest.json`: what a bundle is for, its programs as they are, and what the host does.

`Manifest` says how to read it; its JSON schema, for programs in other languages, is
`research/manifest.schema.json`.
"""

from math import prod
from typing import Annotated, Literal

from ane_book.bundle.contract import check_packages
from ane_book.host import Host, check_labels
from ane_book.options import Recipe
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

__all__ = ["Function", "Manifest", "Part", "Source", "Tokenizer", "Type", "called"]

FORMAT = "ane-book bundle 4"


def _inside(name: str) -> str:
    """The path of a file below the bundle's folder, and nothing else."""
    odd = not name.isprintable() or "\\" in name or ":" in name  # a drive, elsewhere a folder
    if odd or len(name) > 255 or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"{name[:80]!r} is not a path below the bundle's folder")
    return name


FileName = Annotated[str, AfterValidator(_inside)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Extent = Annotated[int, Field(ge=1, le=1 << 40)]
Label = Annotated[str, Field(pattern=r"^[!-~]{1,100}$")]
SHA256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Record):
    """Where the weights came from."""

    kind: str = Field(description='"gguf", "safetensors" or "random"')
    files: list[str]
    fingerprint: str = Field(description="sha256 of the files' bytes")


class Type(_Record):
    """A tensor that goes in or out of a function, or stays as its state."""

    dtype: Literal["fp16", "fp32", "int32"]
    shape: tuple[Extent, ...]


class Function(_Record):
    """A function of a package, as the package declares it."""

    tokens: Positive = Field(description="T")
    inputs: dict[str, Type]
    states: dict[str, Type]
    outputs: dict[str, Type]


class Part(_Record):
    """A package, and its part in the whole."""

    package: FileName
    part: Literal["layers", "head"]
    functions: dict[str, Function]
    layers: tuple[Natural, Natural] | None = Field(None, description="[first, last), of layers")
    stretch: Natural | None = Field(
        None,
        description="n: not for the device but for the host; in the package, `decode` and "
        "`prefill` are `decode_n` and `prefill_n`",
    )


def called(function: str, stretch: int | None) -> str:
    """What a function of a part is called in its package."""
    return function if stretch is None else f"{function}_{stretch}"


class Embedding(_Record):
    """A table of rows (C,), float16, in a file of numpy's format (.npy)."""

    file: FileName = "embedding.npy"
    shape: tuple[Positive, Positive]


class Vectors(_Record):
    """How the host makes vectors of texts."""

    positions: Embedding = Field(description="Rows by a token's place in its text")
    pooling: Literal["mean", "cls"] = Field(description='"cls": of the first token')


class Tags(_Record):
    """How tokens are labelled."""

    labels: Annotated[list[Label], Field(min_length=1, max_length=10_000)] = Field(
        description="In the order of the logits: O, and of each kind of span B, I, E and S"
    )
    window: Positive = Field(description="Tokens that a token sees on each side, in every layer")

    @model_validator(mode="after")
    def _check(self) -> "Tags":
        check_labels(self.labels)
        return self


class Tokenizer(_Record):
    """What turns text into token ids and back."""

    file: FileName = "tokenizer.json"
    chat_template: str | None = Field(None, description="Jinja")
    eos_token_ids: list[int] = Field([], description="An answer ends at any of them")
    bos_token_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None


class Manifest(_Record):
    """What a bundle holds, version 4.

    It is enough to run a bundle, in any language, and knows no architecture. Text generation:

    1.  A token's row of `embedding`, times `host.embedding_scale`, is a column of `hidden`
        (1, C, 1, T); a call of n < T tokens has columns beyond them, whose results are ignored.
    2.  Every part "layers" of `packages` is called in order, by its function of T tokens. Of its
        inputs, `hidden` is the hidden state, `position` (1,) the slot of the first token, a rotary
        table or a mask what `host` says, `x` with a result `new_x` a cache (n, K, S, D), zeros at
        first, and any other one the result of that name of a part before it. The result
        `hidden_out` is the next hidden state; the rows `new_x` (n, K, T, D) go into the cache `x`
        at `position`. States are kept from call to call, zeros at first.
    3.  Where logits are wanted, the parts "head" are called with the hidden state likewise.
        The parts `logits_0`, `logits_1`, ... (1, V_i, 1, T) in a row are the logits; or `token` (1,
        T) is the likeliest token.

    A part with a `stretch` is the host's to run, on its CPU: what is between the programs of the
    device, where each of those has one matrix alone.

    Embedding, that is texts to vectors:

    1.  A token's row of `embedding`, plus the row of `vectors.positions` for its place in its
        text, is a column of `hidden` (1, C, 1, T). Texts may share a call, side by side. `mask`
        (1, 1, T, T) is 0 where row and column are tokens of one text, and -40,000 elsewhere;
        columns beyond the texts see each other alone.
    2.  Every package is called in order, by the same function of T tokens; `hidden_out` is the
        hidden state for the next one.
    3.  The mean of a text's columns, or the first of them, divided by its length, is the text's
        vector.

    Token classification, that is labels of tokens: the same, but for a column of `hidden` being the
    row of `embedding` alone; rotary tables are what `host` says, by a token's place in its text;
    `mask` is -40,000 also where row and column are more than `tags.window` apart; and the last
    package gives `logits` (1, N, 1, T), a score for each of the N `tags.labels`. A text that is
    longer than a call goes in windows: with L layers, the labels of a token depend on the L *
    `tags.window` tokens on each side.

    Letters: C hidden size, T tokens of a call, S slots of the cache (`context`), n layers of a
    package, K key/value heads, D head size, V vocabulary.
    """

    format: Literal["ane-book bundle 4"] = FORMAT
    name: str
    task: Literal["text-generation", "embedding", "token-classification"]
    packages: list[Part] = Field(min_length=1, description="In the order of a token's way")
    embedding: Embedding
    context: Positive = Field(
        description="S, slots of the cache: prompt and answer together; the most tokens of a text"
    )
    host: Host
    vectors: Vectors | None = Field(None, description="Of the task embedding")
    tags: Tags | None = Field(None, description="Of the task token-classification")
    tokenizer: Tokenizer
    golden: FileName = Field("golden.npz", description="Token ids, and what PyTorch says of them")
    model: dict = Field(description="For the record: the model in numbers; running needs none")
    recipe: Recipe = Field(description="For the record: how it was converted")
    source: Source = Field(description="For the record: what it was converted from")
    tools: dict[str, str] = Field(description="For the record: versions of what converted it")
    files: dict[FileName, Natural] = Field(description="Every file but this one, with its bytes")
    sha256: dict[FileName, SHA256] = Field(description="Of the same files")
    seal: str = Field("", description="sha256 of all fields above as JSON with sorted keys")

    @model_validator(mode="after")
    def _check(self) -> "Manifest":
        if self.sha256.keys() != self.files.keys():
            raise ValueError("files and sha256 name different files")
        tables = [self.embedding, *([self.vectors.positions] if self.vectors else [])]
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
    def functions(self) -> dict[str, int]:
        """The functions of every package, and T, the tokens that a call of each takes."""
        return {name: f.tokens for name, f in self.packages[0].functions.items()}

    @property
    def programs(self) -> list[Part]:
        """The parts that are the device's, not the host's."""
        return [part for part in self.packages if part.stretch is None]

    @property
    def shards(self) -> list[Part]:
        """The packages of the layers."""
        return [part for part in self.packages if part.part == "layers"]

    @property
    def head(self) -> list[Part]:
        """The packages of the head."""
        return [part for part in self.packages if part.part == "head"]

    @property
    def splits(self) -> list[int]:
        """Rows of each part of the vocabulary; [] where the head gives the token."""
        parts = {}
        for part in self.head:
            outputs = part.functions["decode"].outputs
            parts |= {name: type_.shape[1] for name, type_ in outputs.items()}
        return [rows for name, rows in parts.items() if name not in ("token", "hidden_out")]

    @property
    def argmax_output(self) -> bool:
        """Whether the head gives the likeliest token instead of logits."""
        return not self.splits
