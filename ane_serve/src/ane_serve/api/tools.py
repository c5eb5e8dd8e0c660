"""Fields of requests about tools and structured answers, as OpenAI has them."""

from collections.abc import Sequence
import json
from typing import Annotated, Any, Literal

from ane_serve.api.closed import Closed
from ane_serve.api.refusal import Refusal
from ane_serve.tools.tools import Calling
from pydantic import Field

MOST_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]  # Anthropic's; OpenAI's have 64


class OfferedFunction(Closed):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of the arguments.")
    strict: bool | None = Field(None, description="Arguments are always held to the schema.")


class Tool(Closed):
    """A tool that a client offers."""

    type: Literal["function"]
    function: OfferedFunction

    def plain(self) -> dict:
        """The tool as chat templates take it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": function}


class CalledFunction(Closed):
    """What an earlier answer called."""

    name: str
    arguments: str = Field(description="A JSON object, as text; of a call that was cut, a part.")


class EarlierCall(Closed):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop the place in a stream, which clients that put one together send back."""
        return {k: v for k, v in given.items() if k != "index"}


class _Named(Closed):
    name: str


class NamedTool(Closed):
    """The one tool that has to be called."""

    type: Literal["function"]
    function: _Named


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def choice_of(
    tools: Sequence[Tool], choice: ToolChoice | None, several: bool | None
) -> tuple[list[dict], Calling]:
    """The tools that may be called, as templates take them, and whether one has to be.

    Raises Refusal for a choice of what is not offered.
    """
    offered, how = [tool.plain() for tool in tools], Calling(several=several is not False)
    if choice in (None, "auto"):
        return offered, how
    if choice == "none":
        return [], how
    if isinstance(choice, NamedTool):
        offered = [tool for tool in offered if tool["function"]["name"] == choice.function.name]
        how = Calling(several=False)
    if not offered:
        raise Refusal(400, "tool_choice asks for a tool that tools does not have",
                      code="invalid_value", param="tool_choice")  # fmt: skip
    return offered, Calling(must=True, several=how.several)


class JsonSchema(Closed):
    """A named schema."""

    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="Answers are always held to the schema.")


class ResponseFormat(Closed):
    """The form of an answer; beyond OpenAI's, "regex" and "grammar" (Lark's EBNF)."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None

    def form(self) -> dict[str, str]:
        """The option of `options.Sampling` that holds an answer to it; raises Refusal."""
        if self.type == "text":
            return {}
        if self.type == "json_object":
            return {"json_schema": '{"type": "object"}'}
        given = getattr(self, self.type)
        if given is None:
            param = f"response_format.{self.type}"
            message = f"{param} is missing"
            raise Refusal(400, message, code="missing_required_parameter", param=param)
        return {self.type: json.dumps(given.schema_) if self.type == "json_schema" else given}
