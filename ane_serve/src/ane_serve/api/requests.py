"""The bodies of requests, field by field, as pydantic models.

A field of OpenAI's that this server does not have is refused by its name, unless its value asks for
nothing; an unknown field is refused as OpenAI does it.
"""

from collections.abc import Sequence
import re
from typing import Annotated, Any, Literal, cast

from ane_book.options import Effort, Real, Whole
from ane_serve.api.closed import Closed, asking
from ane_serve.api.refusal import Refusal
from ane_serve.api.tools import (
    MOST_TOOLS,
    EarlierCall,
    ResponseFormat,
    Tool,
    ToolChoice,
    choice_of,
)
from ane_serve.generation import Ask
from ane_serve.tools.tools import Calling
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

#: Fields of OpenAI's that are not served, with the values that ask for nothing. None always does.
UNSERVED: dict[str, tuple] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": (),
    "web_search_options": (),
}
#: Fields about who asks; they change no answer.
HEEDLESS = ("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user")

#: What a field with several forms takes.
FORMS = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "input": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a string or a list of at most 16 strings",
    "content": 'a text, or a list of {"type": "text", "text": ...}',
}


def _plain_integer(key: Any) -> Any:
    """A key, which pydantic would also take as " 5", "1_0" and "5.0", two of them for one token."""
    if isinstance(key, str) and not re.fullmatch("-?(0|[1-9][0-9]*)", key):
        raise ValueError("Input should be a valid integer, in digits alone")
    return key


# A list is given up at its first fault: one for each of a million items takes minutes, in which
# nobody else is answered.
Ids = Annotated[list[Whole], Field(fail_fast=True, min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=2048)]
Lists = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=2048)]
TokenId = Annotated[int, BeforeValidator(_plain_integer)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Calls = Annotated[list[EarlierCall], Field(fail_fast=True, max_length=MOST_TOOLS)]
Prompt = str | Texts | Ids | Lists


def _each(given: Prompt) -> list[str | list[int]]:
    """The prompts as a list; a text or token ids alone are one prompt."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return cast("list[str | list[int]]", given)


class _Request(Closed):
    model: str | None = Field(None, description="A model's name; without it the first one.")

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop fields that ask for nothing; raises Refusal for what is not served."""
        return asking(given, UNSERVED, HEEDLESS)


class StreamOptions(BaseModel):
    """What a stream has beside its text."""

    include_usage: bool = Field(False, description="A last chunk with the usage; null in others.")


class _Sampled(_Request):
    temperature: Real | None = Field(None, ge=0, le=2, description="0 takes the likeliest token.")
    top_p: Real | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=1, description="Beyond OpenAI: of the K likeliest alone.")
    min_p: Real | None = Field(None, ge=0, le=1, description="Beyond OpenAI, as vLLM has it.")
    presence_penalty: Real = Field(0.0, ge=-2, le=2)
    frequency_penalty: Real = Field(0.0, ge=-2, le=2)
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] = Field({})
    n: Whole = Field(1, ge=1, le=16, description="Answers; the i-th draws with seed + i.")
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=16)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def likeliest(self) -> int | None:
        """How many likeliest tokens are asked for beside each; None without log probabilities."""
        raise NotImplementedError

    def sampling(self, most: int | None, temperature: float) -> dict:
        """The fields of `options.Sampling`, but for the seed."""
        given = self.temperature
        top_p = None if self.top_p is None else max(self.top_p, 1e-9)  # 0: the likeliest alone
        return {
            "max_tokens": most or 2**31,
            "temperature": temperature if given is None else given,
            "top_p": top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "stop": self.stop or (),
            "logprobs": self.likeliest,
        }


class ContentPart(Closed):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Closed):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = Field(None, description="Taken, and nothing is done.")
    reasoning_content: str | None = Field(None, description="Taken, and nothing is done.")
    tool_calls: Calls | None = None
    tool_call_id: str | None = Field(None, description="Of the call that this is the result of.")

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop the empty fields that clients send back with an answer of ours."""
        return {k: v for k, v in given.items() if k in ("role", "content") or v not in (None, [])}

    @model_validator(mode="after")
    def _whole(self) -> "ChatMessage":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id goes with the role tool")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as a chat template takes it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(p.text for p in content or ())
        message = {"role": "system" if self.role == "developer" else self.role, "content": text}
        own = self.model_dump(include={"tool_calls", "tool_call_id"}, exclude_none=True)
        return message | own


class Thinking(Closed):
    """What clients of vLLM and llama.cpp tell the chat template."""

    enable_thinking: bool


class Chat(_Sampled):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    max_tokens: Whole | None = Field(None, ge=1, description="By default what the context leaves.")
    max_completion_tokens: Whole | None = Field(None, ge=1, description="The same, newer.")
    logprobs: bool = Field(False, description="What the model said of each token.")
    top_logprobs: Whole | None = Field(None, ge=0, le=20, description="And of the likeliest.")
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = Field(
        None, description="How much the model thinks, where its chat template has a switch for it."
    )
    chat_template_kwargs: Thinking | None = Field(
        None, description="Beyond OpenAI, as vLLM has it: `enable_thinking`, and nothing else."
    )
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] = Field([])
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def form(self) -> dict[str, str]:
        """The form of the answer, for `options.Sampling`; raises Refusal."""
        form = self.response_format.form() if self.response_format else {}
        if form and self.offered[0]:
            message = "response_format and tools hold the answer to two forms; leave one out"
            raise Refusal(400, message, code="unsupported_value", param="response_format")
        return form

    @property
    def offered(self) -> tuple[list[dict], Calling]:
        """The tools that may be called, and whether one has to be; raises Refusal."""
        return choice_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def effort(self) -> str | None:
        """How much the model is to think, by either field."""
        if self.reasoning_effort or self.chat_template_kwargs is None:
            return self.reasoning_effort
        return "high" if self.chat_template_kwargs.enable_thinking else "none"

    @property
    def likeliest(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            message = "top_logprobs goes with logprobs: true"
            raise Refusal(400, message, code="invalid_value", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def chat_of(body: dict) -> Chat:
    """The chat that a request to another path amounts to; raises Refusal."""
    try:
        return Chat.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise refuse_invalid([{**first, "loc": ("body", *first["loc"])}]) from None


class Completion(_Sampled):
    """POST /v1/completions.

    Without `model`, or with `system`, it is asked as the book's source has it: the prompt is what a
    user says, through the chat template, answered greedily in at most 50 tokens by default.
    """

    prompt: Prompt
    max_tokens: Whole | None = Field(None, ge=1, description="16 by default, 50 without a model.")
    system: str | None = Field(None, description="System prompt, as the book's source has it.")
    logprobs: Whole | None = Field(None, ge=0, le=5, description="Of so many of the likeliest.")

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    @property
    def plainly_asked(self) -> bool:
        """Whether it is asked in the source's form (`ane_serve.api.answers`)."""
        return isinstance(self.prompt, str) and (self.model is None or self.system is not None)

    def prompts(self) -> list[str | list[int]]:
        """The prompts, of which each gets its answers."""
        return _each(self.prompt)


class EmbeddingRequest(_Request):
    """POST /v1/embeddings."""

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = Field(
        None, ge=1, description="Vectors are cut to so many numbers, and scaled to length 1."
    )
    prompt: str | None = Field(
        None, description="Beyond OpenAI: a name of the model's prompts, or a text, before each."
    )

    def texts(self) -> list[str | list[int]]:
        return _each(self.input)


class Tokenize(_Request):
    """POST /tokenize: the tokens of a conversation, through the template, or of a plain prompt."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)] | None = None
    prompt: str | None = None

    def asked(self) -> str | list[dict]:
        """The prompt or the conversation; raises Refusal."""
        if (self.messages is None) == (self.prompt is None):
            raise Refusal(400, "give either messages or a prompt", code="invalid_value")
        if self.messages is None:
            assert self.prompt is not None
            return self.prompt
        return [message.plain() for message in self.messages]


class LineRequest(Closed):
    """A line on a socket or on stdin: token ids, or a question."""

    tokens: Ids | None = None
    prompt: str | None = None
    system: str | None = None
    max_tokens: Whole = Field(50, ge=1)
    temperature: Real = Field(0.0, ge=0)
    top_p: Real | None = Field(None, gt=0, le=1)
    top_k: Whole | None = Field(None, ge=1)
    seed: Whole | None = Field(None, ge=0)
    stop: list[str] = Field([], fail_fast=True, max_length=16)

    def ask(self) -> Ask:
        """The prompt and options of the line; raises Refusal."""
        given = [each for each in (self.tokens, self.prompt) if each is not None]
        if len(given) != 1:
            raise Refusal(400, "give either tokens or a prompt", code="invalid_value")
        sampling = self.model_dump(exclude={"tokens", "prompt", "system", "seed"})
        return Ask(given, sampling, 1, self.seed, self.system)


def refuse_invalid(errors: Sequence[Any]) -> Refusal:
    """Make a refusal of the first thing that is wrong with a body, in one sentence."""
    first = errors[0]
    place = [part for part in first["loc"][1:] if not str(part).startswith(("list[", "constr"))]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", "")
        return Refusal(400, f"the body is not JSON: {why}", code="invalid_json")
    if not place:
        return Refusal(400, "the body has to be a JSON object, sent as application/json")
    field = next((part for part in reversed(place) if part in FORMS), None)
    param = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        message = f"Unrecognized request argument supplied: {param}"
        return Refusal(400, message, code="unknown_parameter", param=param)
    if field is not None and first["type"] not in ("missing", "value_error"):
        param = ".".join(map(str, place[: place.index(field) + 1]))
        return Refusal(400, f"{param} has to be {FORMS[field]}", code="invalid_type", param=param)
    if first["type"] == "missing":
        return Refusal(400, f"{param} is missing", code="missing_required_parameter", param=param)
    if first["type"] == "too_short":
        least = first["ctx"]["min_length"]
        rule = f"has to have at least {least} item" + "s" * (least != 1)
    else:
        rule = first["msg"].replace("Input should be", "has to be", 1)
        rule = rule.replace("Value error, ", "", 1)
    return Refusal(400, f"{param} {rule}{_was(first)}", code="invalid_value", param=param)


def _was(error: dict) -> str:
    value = error.get("input")
    return f", not {value!r}"[:100] if isinstance(value, str | int | float) else ""
