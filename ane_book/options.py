"""The options of the library, each said once.

The fields of `Recipe` shape a conversion, those of `Sampling` an answer. `ane_book.convert`, `load`
and `Session` take them by name, a bundle's manifest keeps its recipe, and the command line is made
from them: types, bounds, defaults, and the descriptions as help.
"""

from itertools import pairwise
import re
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from ane_book.errors import InvalidInput
from ane_book.layout import LAYOUTS, CallShape, Form, Layout
from mlprogram.machine import parse_bytes
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)


def _bytes(text: Any) -> int:
    try:
        return parse_bytes(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    """Python's own number of one of numpy's."""
    return value.item() if hasattr(value, "item") else value


def _texts(given: Any) -> Any:
    """Texts of one or of several."""
    return (given,) if isinstance(given, str) else given


def _tiers(given: Any) -> Any:
    """Numbers of slots, ascending and each once, of "128,256", of one or of several."""
    if isinstance(given, str):
        parts = given.split(",")
        if not all(re.fullmatch(r"\s*\d{1,9}\s*", part) for part in parts):
            raise ValueError(f"{given!r:.80} are no numbers of slots; write them like 128,256")
        given = [*map(int, parts)]
    numbers = given if isinstance(given, list | tuple | range) else (given,)
    numbers = [_plain(number) for number in numbers]
    if any(type(number) is not int for number in numbers):
        return numbers
    if twice := [slots for slots, after in pairwise(sorted(numbers)) if slots == after]:
        raise ValueError(f"{twice[0]} is there twice")
    return sorted(numbers)


def tier_name(function: str, slots: int, context: int) -> str:
    """What a function over a cache of so many slots is called: by its name alone, that of all."""
    return function if slots == context else f"{function}_s{slots}"


Bytes = Annotated[int, BeforeValidator(_bytes)]
Whole = Annotated[int, BeforeValidator(_plain), Field(strict=True)]
Real = Annotated[float, BeforeValidator(_plain), Field(strict=True, allow_inf_nan=False)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Tiers = Annotated[tuple[Annotated[int, Field(strict=True, ge=2)], ...], BeforeValidator(_tiers)]
#: How much a model is to think, by OpenAI's words.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
#: What of a mixture of experts is in a graph: see `ane_book.models.base.experts`.
Strategy = Literal["packed", "dispatch"]


class Recipe(BaseModel):
    """How a model is converted: everything that shapes the graphs. What is None is not given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv: Literal["state", "host"] = Field(
        "state", description="Who keeps the KV cache: Core ML states, or the host."
    )
    state_write: Literal["update", "select"] = Field(
        "update",
        description="How new rows go into a state: cut in by slice_update, or by a select over "
        "the whole state, for systems that lose what a state written in part held.",
    )
    context: Whole = Field(
        512,
        ge=1,
        description="Most tokens of prompt and answer together; fewer where the model takes fewer.",
    )
    tiers: Tiers = Field(
        (),
        description="Smaller caches beside that of the context, over the same weights, such as "
        "128,256: each call takes the smallest that holds its tokens.",
    )
    prefill: Whole = Field(
        64, ge=2, description="Tokens that a prefill call takes; at most the context."
    )
    verify: Whole | None = Field(
        None,
        ge=2,
        description="Also write a function for K tokens, which then does all decoding, guessed "
        "tokens included.",
    )
    functions: Literal["two", "one"] = Field(
        "two",
        description="Functions of every package: one for single tokens and one for prompts, or a "
        "single one for K tokens, 8 unless verify says otherwise, which does both and checks "
        "guesses; where each loaded function holds a copy of the weights, that is half of them.",
    )
    silu: Literal["native", "tanh"] = Field(
        "native",
        description="The activation of a decoder's layers: the operation silu, or 0.5 x (1 + "
        "tanh(x / 2)), for engines whose own silu is off near 0; three operations more a layer.",
    )
    form: Form = Field(
        "rows",
        description="Attention: a token is a row, and heads that share keys are rows of one "
        "product; or as Apple's rules for the engine ask, each head apart, tokens last, keys on "
        "the channel axis.",
    )
    lora_slots: Whole = Field(
        0,
        ge=0,
        le=1024,
        description="Rank of the slots for a LoRA adapter that every projection of a layer has, "
        "as inputs of the programs, so that adapters change without a conversion; 0: none.",
    )
    shard_limit: Bytes = Field(1_000_000_000, ge=0, description="Most weight bytes of a program.")
    head_rows: Whole = Field(16384, ge=1, description="Most rows in a part of the vocabulary.")
    argmax_output: bool = Field(False, description="Return the likeliest token, not logits.")
    quant: str = Field(
        "none",
        description="How weights are stored: none, int8, int8-tensor, int4, int4-channel, lut8, "
        "lut6 or lut4 (a palette for 16 output channels, ten times as long to convert); auto:BITS, "
        "such as auto:5, spends so many bits a weight where the loss on a text feels it most; "
        "stored keeps the integers of an ONNX bundle. `ane-book plan` shows what each cost "
        "SmolLM2-135M.",
    )
    quant_head: str = Field("", description="How the head's are stored; by default as quant.")
    partition: Literal["layers", "whole"] = Field(
        "layers",
        description="A program for as many layers as the limit allows, or for all of them.",
    )
    experts: Strategy = Field(
        "packed",
        description="Experts of a mixture: all in the graph, as many side by side as keep a "
        "product narrow; or a program for each, called when it is chosen.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        given = {name: value for name, value in given.items() if value is not None}
        given["quant_head"] = given.get("quant_head") or given.get("quant", "none")
        return given

    @property
    def is_plain(self) -> bool:
        """Whether no weight is quantised."""
        return self.quant == self.quant_head == "none"

    @property
    def is_calibrated(self) -> bool:
        """Whether matrices are stored by a budget, with a text at hand."""
        return any(name.startswith("auto") for name in (self.quant, self.quant_head))

    @property
    def is_stored(self) -> bool:
        """Whether matrices keep the integers that their source has."""
        return "stored" in (self.quant, self.quant_head)

    @property
    def widths(self) -> dict[str, int]:
        """The functions of every package, and T, the tokens that a call of each takes."""
        own = {"decode": 1, "prefill": self.prefill} if self.functions == "two" else {}
        return own | ({} if self.verify is None else {"verify": self.verify})

    @property
    def default_function(self) -> str:
        """The function of a package that is called where none is named."""
        return next(iter(self.widths))

    @property
    def layout(self) -> Layout:
        """Where tokens are in caches, masks and rotary tables."""
        return LAYOUTS[self.form]

    @property
    def golden_tokens(self) -> int:
        """Tokens of a bundle's reference results: of a prefill call, or where there is none of two
        calls, if the caches have room, so that the second one reads what the first one cached."""
        if self.functions == "one" and self.caches[0] >= 2 * self.prefill:
            return 2 * self.prefill
        return self.prefill

    @property
    def caches(self) -> tuple[int, ...]:
        """S of every tier, ascending; the last is the context."""
        return (*(slots for slots in self.tiers if slots != self.context), self.context)

    @property
    def calls(self) -> dict[str, CallShape]:
        """The functions of packages with a cache, in all tiers, and the shape of a call of each."""
        return {
            tier_name(name, S, self.context): CallShape(T, S, self.layout)
            for S in reversed(self.caches)
            for name, T in self.widths.items()
        }


#: The options that hold an answer to a form (`ane_book.runtime.grammar`).
FORMS = ("json_schema", "regex", "grammar")


class Sampling(BaseModel):
    """How an answer is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: Whole = Field(
        256, ge=1, description="Most tokens of an answer; what the context leaves may be less."
    )
    temperature: Real = Field(0.0, ge=0, description="0 always takes the likeliest token.")
    top_k: Whole | None = Field(None, ge=1, description="Draw among the K likeliest tokens.")
    top_p: Real | None = Field(
        None, gt=0, le=1, description="Draw among the likeliest, up to P in sum."
    )
    min_p: Real | None = Field(
        None, ge=0, le=1, description="Draw tokens at least P times as likely as the likeliest."
    )
    logit_bias: dict[Whole, Real] = Field(
        {}, description="What is added to the logits of tokens, by id: -100 forbids one."
    )
    presence_penalty: Real = Field(
        0.0, ge=-2, le=2, description="Taken from the logits of tokens that the answer has."
    )
    frequency_penalty: Real = Field(
        0.0, ge=-2, le=2, description="The same, once for each time that the answer has them."
    )
    seed: Whole | None = Field(None, ge=0, description="The same seed draws the same tokens.")
    json_schema: str | None = Field(
        None, description="A JSON schema that the answer keeps, or on the command line its file."
    )
    regex: str | None = Field(
        None, description="A regular expression that the whole answer matches."
    )
    grammar: str | None = Field(
        None, description="A grammar that the answer keeps, in Lark's EBNF as llguidance reads it."
    )
    system: str | None = Field(None, description='System prompt; "" is an empty one.')
    reasoning_effort: Effort | None = Field(
        None,
        description="How much the model thinks, where its chat template has a switch for it; none "
        "and minimal switch it off.",
    )
    stop: Texts = Field((), description="Strings that end the answer, left out of it.")
    shown: Texts = Field(
        (), description="Special tokens that the answer's text has, such as [TOOL_CALLS]."
    )
    stop_repeat: Whole | None = Field(
        None, ge=1, description="End the answer with N tokens in a row that it had before."
    )
    logprobs: Whole | None = Field(
        None, ge=0, le=20, description="Keep what the model says of tokens, and of the N likeliest."
    )
    reuse_cache: bool = Field(
        False, description="Keep the cache's tokens that the prompt begins with, as a chat does."
    )

    @model_validator(mode="after")
    def _one_form(self) -> "Sampling":
        if sum(getattr(self, form) is not None for form in FORMS) > 1:
            raise ValueError(f"an answer keeps one form; give one of {', '.join(FORMS)}")
        return self

    @property
    def form(self) -> tuple[str, str] | None:
        """The name and text of the form that the answer has to keep."""
        return next(((f, text) for f in FORMS if (text := getattr(self, f)) is not None), None)

    @property
    def needs_logits(self) -> bool:
        """Whether the likeliest token alone does not do, as `argmax_output` gives it."""
        penalties = self.presence_penalty or self.frequency_penalty
        changed = bool(self.logit_bias or penalties or self.form)
        return self.temperature > 0 or self.logprobs is not None or changed


class RecipeOptions(TypedDict, total=False):
    """The fields of `Recipe` as `convert` and `plan` take them, for editors and type checkers."""

    kv: Literal["state", "host"]
    state_write: Literal["update", "select"]
    context: int | None
    tiers: tuple[int, ...] | str
    prefill: int | None
    verify: int | None
    functions: Literal["two", "one"]
    silu: Literal["native", "tanh"]
    form: Form
    lora_slots: int
    shard_limit: int | str
    head_rows: int
    argmax_output: bool
    quant: str | None
    quant_head: str | None
    partition: Literal["layers", "whole"]
    experts: Strategy


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as `generate` and `stream` take them."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    logit_bias: dict[int, float]
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    json_schema: str | None
    regex: str | None
    grammar: str | None
    system: str | None
    reasoning_effort: Effort | None
    stop: str | tuple[str, ...] | list[str]
    shown: str | tuple[str, ...] | list[str]
    stop_repeat: int | None
    logprobs: int | None
    reuse_cache: bool


Record = TypeVar("Record", Recipe, Sampling)


def checked(record: type[Record], options: dict) -> Record:
    """The record with these options; InvalidInput for a value, TypeError for a name, that is none.

    The one error names the option, what it must be, and what it was.
    """
    if unknown := options.keys() - record.model_fields.keys():
        known = ", ".join(sorted(record.model_fields))
        raise TypeError(f"no option {min(unknown)!r}; there are: {known}")
    try:
        return record(**options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    name, message = (first["loc"] or ("",))[0], first["msg"]
    if message.startswith("Value error, "):
        raise InvalidInput(f"{name}: {message.removeprefix('Value error, ')}".removeprefix(": "))
    wanted = message.replace("Input should be", "must be", 1)
    raise InvalidInput(f"{name} {wanted}, not {first['input']!r}")
