"""POST /v1/messages, Anthropic's API, for text and tools: its requests become those of a chat.

Reference: the types of Anthropic's own client, `anthropic.types`.
"""

from collections.abc import Sequence
import json
from typing import Annotated, Any, Literal

from ane_book.options import Real, Whole
from ane_serve.api.closed import Closed, asking
from ane_serve.api.refusal import Refusal
from ane_serve.api.requests import Chat, chat_of
from ane_serve.api.tools import MOST_TOOLS, Name
from pydantic import BeforeValidator, Field, model_validator

#: Fields that are not served, with the values that ask for nothing. None always does.
UNSERVED: dict[str, tuple] = {
    "compaction": (),
    "container": (),
    "fallbacks": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thread": (),
}
#: Fields about who asks and what is kept; they change no answer.
HEEDLESS = ("cache_control", "diagnostics", "metadata", "user_profile_id")
#: What a message of each role may have.
CONTENT = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking"),
    "system": ("text",),
}


def _refuse_unknown(given: Any, kinds: Sequence[str]) -> None:
    """Raise ValueError for a block of another type than these."""
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in kinds:
        served = f"{', '.join(kinds)} {'is' if len(kinds) == 1 else 'are'}"
        raise ValueError(f"is of type {kind!r:.40}, which is not served here; {served}")


def _blocks(given: Any) -> Any:
    """Content as a list of blocks; a text is one of them."""
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


def _object(given: Any) -> Any:
    if not isinstance(given, dict):
        raise ValueError("has to be an object")
    return given


class _Block(Closed):
    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop what asks for nothing, and what an answer of Anthropic's has beside its content."""
        aside = ("cache_control", "caller", "citations")
        return {k: v for k, v in given.items() if k not in aside and v is not None}


class TextContent(_Block):
    """A text."""

    type: Literal["text"]
    text: str

    @classmethod
    def _asked(cls, given: dict) -> dict:
        _refuse_unknown(given, ("text",))
        return super()._asked(given)


TextContents = Annotated[list[TextContent], Field(fail_fast=True), BeforeValidator(_blocks)]


class ThinkingContent(_Block):
    """What an earlier answer thought; templates leave it out."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Empty, as in answers of this server.")

    @model_validator(mode="after")
    def _unsigned(self) -> "ThinkingContent":
        if self.signature:
            raise ValueError("has a signature, which is not served here; leave the block out")
        return self


class ToolUse(_Block):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, Any], BeforeValidator(_object)]

    def call(self) -> dict:
        """The call as a chat has it."""
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ToolResult(_Block):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContents = Field([], description="Blocks of text, or a text.")
    is_error: bool = Field(False, description="Taken, and nothing is done.")


def _served(given: Any) -> Any:
    _refuse_unknown(given, [*dict.fromkeys(kind for kinds in CONTENT.values() for kind in kinds)])
    return given


Block = Annotated[
    Annotated[TextContent | ThinkingContent | ToolUse | ToolResult, Field(discriminator="type")],
    BeforeValidator(_served),
]


class Message(Closed):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], Field(fail_fast=True), BeforeValidator(_blocks)] = Field(
        description="Blocks, or a text."
    )

    @model_validator(mode="after")
    def _fits(self) -> "Message":
        for block in self.content:
            if block.type not in CONTENT[self.role]:
                raise ValueError(f"has the role {self.role}, which says no {block.type}")
        return self


class OfferedTool(Closed):
    """A tool that the client offers."""

    name: Name
    description: str | None = None
    input_schema: Annotated[dict[str, Any], BeforeValidator(_object)]
    strict: bool | None = Field(None, description="Refuse a schema that calls cannot be held to.")

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop fields that change no call; raises ValueError for a tool of the server's."""
        if given.get("type") not in (None, "custom"):
            kind = f"is of type {given['type']!r:.40}, which is not served here"
            raise ValueError(f"{kind}; tools with a name and an input_schema are")
        if given.get("defer_loading"):
            raise ValueError("has defer_loading, which is not served here; leave it out")
        aside = {"type", "cache_control", "defer_loading", "eager_input_streaming"}
        aside |= {"input_examples", "allowed_callers"}
        return {k: v for k, v in given.items() if k not in aside}

    def tool(self) -> dict:
        """The tool as a chat has it."""
        function = {"name": self.name, "parameters": self.input_schema}
        described = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": function | described}


class ToolChoosing(Closed):
    """Whether a tool has to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Of the one that has to be, with the type tool.")
    disable_parallel_tool_use: bool = False

    def chat(self) -> str | dict:
        """The choice as a chat has it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return "required" if self.type == "any" else self.type


class ThinkingConfig(Closed):
    """Whether the model is to think."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Whole | None = Field(None, description="Taken, and nothing is done.")
    display: str | None = Field(None, description="Taken; an answer has the whole thought.")


class JsonFormat(Closed):
    """The form of an answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Closed):
    """How an answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class CountTokens(Closed):
    """POST /v1/messages/count_tokens: a conversation and its tools."""

    model: str | None = Field(None, description="A model's name; without it the first one.")
    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1)
    system: TextContents = Field([], description="The system prompt: blocks of text, or a text.")
    tools: Annotated[list[OfferedTool], Field(fail_fast=True, max_length=MOST_TOOLS)] = Field([])
    tool_choice: ToolChoosing | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop fields that ask for nothing; raises Refusal for what is not served."""
        asked = asking(given, UNSERVED, HEEDLESS)
        if not _drops_thoughts_alone(asked.pop("context_management", None)):
            message = "context_management is served for edits of clear_thinking alone"
            raise Refusal(400, message, code="unsupported_value", param="context_management")
        return asked

    @property
    def lenient(self) -> bool:
        """Whether it does without what the model cannot be held to."""
        return not any(tool.strict for tool in self.tools)

    def chat(self) -> Chat:
        """The request of a chat; raises Refusal."""
        if self.messages[-1].role == "assistant":
            message = "messages end with the assistant's, which is not continued (no prefill)"
            raise Refusal(400, message, code="unsupported_value", param="messages")
        return chat_of(self._body())

    def _body(self) -> dict:
        told: list[dict] = []
        if self.system:
            told.append({"role": "system", "content": _joined(self.system)})
        for message in self.messages:
            _tell(message, told)
        choice, form = self.tool_choice, self.output_config.format
        return {
            "model": self.model,
            "messages": told,
            "tools": [tool.tool() for tool in self.tools],
            "tool_choice": choice and choice.chat(),
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "reasoning_effort": self._effort(),
            "response_format": form and {
                "type": "json_schema", "json_schema": {"name": "output", "schema": form.schema_}
            },
        }  # fmt: skip

    def _effort(self) -> str | None:
        """How much the model is to think; None where that is the template's to say."""
        thinking = self.thinking.type if self.thinking else None
        if thinking == "disabled":
            return "none"
        effort = self.output_config.effort or ("high" if thinking == "enabled" else None)
        return "xhigh" if effort == "max" else effort


class Messages(CountTokens):
    """POST /v1/messages."""

    max_tokens: Whole = Field(ge=1)
    temperature: Real | None = Field(None, ge=0, le=1)
    top_p: Real | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=0, description="Of the K likeliest alone; 0 of all.")
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=16)] = Field([])
    stream: bool = False

    def _body(self) -> dict:
        own = {name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p")}
        own |= {"top_k": self.top_k or None, "stop": self.stop_sequences, "stream": self.stream}
        return super()._body() | own


def _drops_thoughts_alone(management: Any) -> bool:
    """Whether a context_management asks for no more than what templates do with thoughts."""
    edits = (management or {}).get("edits") or [] if isinstance(management, dict | None) else None
    if not isinstance(edits, list):
        return False
    kinds = [edit.get("type") if isinstance(edit, dict) else None for edit in edits]
    return all(str(kind).startswith("clear_thinking_") for kind in kinds)


def _joined(blocks: Sequence[TextContent]) -> str:
    return "\n".join(block.text for block in blocks)


def _tell(message: Message, told: list[dict]) -> None:
    """Add a message as a chat has it: results are messages, and a role's turns in a row are one.

    A system message behind others is told as the user's: most templates take one at the start.
    """
    role: str = message.role
    if role == "system" and any(each["role"] != "system" for each in told):
        role = "user"
    for block in message.content:
        if isinstance(block, ToolResult):
            result = {"role": "tool", "tool_call_id": block.tool_use_id}
            told.append(result | {"content": _joined(block.content)})
        elif not isinstance(block, ThinkingContent):
            if not told or told[-1]["role"] != role:
                told.append({"role": role, "content": None})
            turn = told[-1]
            if isinstance(block, ToolUse):
                turn.setdefault("tool_calls", []).append(block.call())
            else:
                said = turn["content"]
                turn["content"] = block.text if said is None else f"{said}\n{block.text}"
