"""The records that a manifest is made of: packages with their functions, tables, tokenizer.

Names, descriptions and the docstrings of records go into `research/manifest.schema.json`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ane_book.host import check_labels
from ane_book.layout import CallShape, Layout, Store, kept_under
from ane_book.rope import Factor
from ane_book.text.layout import ChatSegments, Record
from pydantic import AfterValidator, Field, model_validator


def _inside(name: str) -> str:
    """Check that a name is a path below the bundle's folder; raises ValueError."""
    odd = not name.isprintable() or "\\" in name or ":" in name  # on Windows a folder or a drive
    if odd or len(name) > 255 or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"{name[:80]!r} is not a path below the bundle's folder")
    return name


FileName = Annotated[str, AfterValidator(_inside)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Extent = Annotated[int, Field(ge=1, le=1 << 40)]
Label = Annotated[str, Field(pattern=r"^[!-~]{1,100}$")]
SHA256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Source(Record):
    """Where the weights came from."""

    kind: str = Field(description='"gguf", "safetensors" or "random"')
    files: list[str]
    fingerprint: str = Field(description="sha256 of the files' bytes")


class Type(Record):
    """A tensor that goes in or out of a function, or stays as its state."""

    dtype: Literal["fp16", "fp32", "int32"]
    shape: tuple[Extent, ...]


class FunctionSpec(Record):
    """A function of a package, as the package declares it."""

    tokens: Positive = Field(description="T")
    slots: Positive | None = Field(
        None, description="S, of the cache that it attends to; null: it attends to none"
    )
    inputs: dict[str, Type]
    states: dict[str, Type]
    outputs: dict[str, Type]

    def call(self, layout: Layout) -> CallShape:
        return CallShape(self.tokens, self.slots or 0, layout)

    @property
    def handed(self) -> dict[str, tuple[int, ...]]:
        """Of what the last part of a layer gives, what the next layers may take: their shapes."""
        own = {name: type_.shape for name, type_ in self.outputs.items() if name != "hidden_out"}
        return {name: shape for name, shape in own.items() if not name.startswith("new_")}

    def stores(self, layout: Layout) -> list[Store]:
        """What the package keeps from call to call."""
        kept = [(n, t, False) for n, t in self.inputs.items() if f"new_{n}" in self.outputs]
        kept += [(name, type_, True) for name, type_ in self.states.items()]
        return [
            Store(name, kept_under(name, type_.shape, layout), (*type_.shape, 0)[0], is_state)
            for name, type_, is_state in kept
        ]


class Part(Record):
    """A package, and its part in the whole."""

    package: FileName
    part: Literal["layers", "experts", "head"]
    functions: dict[str, FunctionSpec]
    layers: tuple[Natural, Natural] | None = Field(None, description="[first, last), of layers")
    expert: Natural | None = Field(
        None,
        description="n: of the part experts, its number; in the package, `decode` and `prefill` "
        "are `decode_n` and `prefill_n`",
    )

    @property
    def span(self) -> range:
        """Its layers, by number, none for the last trunk; ValueError for a head."""
        if self.layers is None:
            raise ValueError(f"{self.package} has no layers")
        return range(*self.layers)

    def called(self, function: str) -> str:
        """The name of one of the part's functions in its package."""
        return called(function, self.expert)


class Layer(Record):
    """What a layer keeps from call to call, and how it makes it."""

    stores: list[str] = Field(
        description="What it keeps, by name; [] where it reads what a layer before it keeps"
    )
    rotary: str | None = Field(None, description="Its rotary table; null: it has none")
    mask: str | None = Field(None, description="Its mask; null: it attends to nothing")
    neighbours: bool = Field(
        False,
        description="`transformers` has the rotated dimensions 2i and 2i + 1 of its keys as a "
        "pair; here they are i and i + R/2",
    )
    memory_scale: Factor = Field(1.0, description="Its memory is that of `transformers` times this")


@dataclass(frozen=True)
class StoreEntry:
    """Where something that a layer keeps is: `name`, entry `index` of a store of a package."""

    layer: int
    name: str
    package: int  # number among those with layers
    store: Store
    index: int


def called(function: str, number: int | None) -> str:
    """The name of a function in its package: `decode`, or `decode_3` for expert number 3."""
    return function if number is None else f"{function}_{number}"


class Embedding(Record):
    """A table of rows (C,), float16, in a file of numpy's format (.npy)."""

    file: FileName = "embedding.npy"
    shape: tuple[Positive, Positive]


class Vectors(Record):
    """How the host makes vectors of texts."""

    positions: Embedding | None = Field(
        None,
        description="Rows by a token's place in its text; null: nothing is added",
    )
    pooling: Literal["mean", "cls", "last"] = Field(
        description='"cls": of the first token, "last": of the last'
    )
    causal: bool = Field(False, description="A token sees none behind it")
    prompts: dict[str, str] = Field({}, description="What may stand before a text, by name")
    default_prompt: str | None = Field(
        None, description="The name of the prompt that does so where none is asked for"
    )
    dimensions: Positive | None = Field(
        None, description="A vector is cut to so many numbers, before it is divided by its length"
    )


class Tags(Record):
    """How tokens are labelled."""

    labels: Annotated[list[Label], Field(min_length=1, max_length=10_000)] = Field(
        description="In the order of the logits: O, and of each kind of span B, I, E and S"
    )
    window: Positive = Field(description="Tokens that a token sees on each side, in every layer")

    @model_validator(mode="after")
    def _check(self) -> "Tags":
        check_labels(self.labels)
        return self


class Target(Record):
    """A matrix of a layer for which a LoRA adapter may have a pair A and B."""

    module: FileName = Field(description="Its name in a layer, such as self_attn.q_proj")
    rows: Positive = Field(description="The rows of its B")


class Slot(Record):
    """A slot for an adapter: a projection, which stacks one or more matrices."""

    inputs: Positive = Field(description="The columns of every A")
    targets: Annotated[list[Target], Field(min_length=1)] = Field(description="In order")


class Adapters(Record):
    """The slots for a LoRA adapter that every layer has."""

    rank: Positive = Field(description="R; an adapter of a lower rank has zeros in the rest")
    layers: str = Field(description="Names of a layer's matrices begin with this and its number")
    slots: dict[str, Slot] = Field(min_length=1, description="By the beginning of inputs' names")

    def shapes(self, n: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs of n layers by name: `x_a` and `x_b` of each slot x."""
        found: dict[str, tuple[int, ...]] = {}
        for name, slot in self.slots.items():
            rows = sum(target.rows for target in slot.targets)
            found[f"{name}_a"] = n, len(slot.targets) * self.rank, 1, slot.inputs
            found[f"{name}_b"] = n, rows, 1, self.rank
        return found


class Tokenizer(Record):
    """What turns text into token ids and back."""

    file: FileName = "tokenizer.json"
    chat_template: str | None = Field(None, description="Jinja")
    eos_token_ids: list[int] = Field([], description="An answer ends at any of them")
    bos_token_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    packed: FileName | None = Field(
        None,
        description="The same tokenizer in the form that `swift_tables.packed` describes, for "
        "hosts without the `tokenizers` library; null: it has none",
    )
    segments: ChatSegments | None = Field(
        None, description="The chat template for hosts without Jinja; null: it has none"
    )
    refused: dict[Literal["packed", "segments"], str] = Field(
        {}, description="Why one of these two is missing, in one sentence"
    )
