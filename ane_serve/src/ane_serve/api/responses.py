"""POST /v1/responses, OpenAI's newer API, for text and tools: its requests become those of a chat,
and the answers of a chat become items.

Nothing is stored, so `previous_response_id` is refused: a client sends the items again.
Reference: the types of OpenAI's own client, `openai.types.responses`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import uuid4

from ane_book.options import Effort, Real, Whole
from ane_serve.api.answers import ChatShape, event
from ane_serve.api.closed import Closed, asking
from ane_serve.api.refusal import Refusal
from ane_serve.api.requests import HEEDLESS, Chat, chat_of
from ane_serve.generation import CallPiece, Finished, TextPiece
from ane_serve.tools.calls import CallPart
from pydantic import Field

#: Fields that are not served, with the values that ask for nothing.
UNSERVED: dict[str, tuple] = {
    "background": (False,),
    "conversation": (),
    "include": ([], ["reasoning.encrypted_content"]),  # an answer has the whole thought
    "max_tool_calls": (),
    "previous_response_id": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (True, False),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
TEXTS = ("input_text", "output_text", "text")


class Reasoning(Closed):
    """How much the model is to think."""

    effort: Effort | None = None
    summary: str | None = Field(None, description="Taken; an answer has the whole thought.")
    generate_summary: str | None = Field(None, description="The same, older.")


class Responses(Closed):
    """A request: `input` is a text, or items of a conversation."""

    model: str | None = Field(None, description="A model's name; without it the first one.")
    input: str | Annotated[list[dict[str, Any]], Field(fail_fast=True, min_length=1)]
    instructions: str | None = Field(None, description="The system prompt.")
    max_output_tokens: Whole | None = Field(None, ge=1)
    temperature: Real | None = Field(None, ge=0, le=2)
    top_p: Real | None = Field(None, ge=0, le=1)
    reasoning: Reasoning | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] = Field([])
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = Field({}, description="`format`: the form of the answer.")
    stream: bool = False
    stream_options: dict[str, Any] | None = Field(None, description="Taken, and nothing is done.")

    @classmethod
    def _asked(cls, given: dict) -> dict:
        return asking(given, UNSERVED, (*HEEDLESS, "client_metadata"))

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools that answers can call. Codex and other agents offer some beside them that
        OpenAI's own server runs, or whose input is no JSON, and get on without."""
        return [tool for tool in self.tools if _kind(tool) == "function"]

    @property
    def left_out(self) -> list[str]:
        """The types of the others."""
        return sorted({str(_kind(tool))[:40] for tool in self.tools} - {"function"})

    @property
    def lenient(self) -> bool:
        """Whether it does without what the model cannot be held to."""
        return all(tool.get("strict") is False for tool in self.functions)

    def chat(self) -> Chat:
        """The request of a chat; raises Refusal."""
        return chat_of({
            "model": self.model,
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": [{"type": "function", "function": _rest(each)} for each in self.functions],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
            "response_format": _format(self.text.get("format")),
            "stream": self.stream,
        })  # fmt: skip

    def _messages(self) -> list[dict]:
        said = []
        if self.instructions is not None:
            said.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*said, {"role": "user", "content": self.input}]
        for i, item in enumerate(self.input):
            said += _message(item, f"input.{i}", said)
        return said


def _message(item: dict, place: str, before: list[dict]) -> list[dict]:
    """The messages of an item; later calls in a row are added to the message of the first."""
    kind = item.get("type", "message")
    if kind == "message":
        return [{"role": item.get("role"), "content": _content(item.get("content"), place)}]
    if kind == "reasoning":
        return []  # of an earlier answer; templates leave it out as well
    if kind == "function_call_output":
        content = _content(item.get("output"), place)
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": content}]
    if kind != "function_call":
        message = f"{place} is of type {kind!r:.40}; message, function_call, function_call_output "
        raise Refusal(400, message + "and reasoning are served", param=place)
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    if before and before[-1].get("tool_calls"):
        before[-1]["tool_calls"].append(call)
        return []
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def _content(content: Any, place: str) -> Any:
    """A message's content, whose pieces have names of their own here."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXTS:
            raise Refusal(400, f"{place}: content has to be text", param=place)
    return [{"type": "text", "text": part.get("text")} for part in content]


def _kind(tool: dict) -> Any:
    return tool.get("type", "function")


def _choice(choice: str | dict) -> str | dict:
    if isinstance(choice, str):
        return choice
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}


def _format(form: dict | None) -> dict | None:
    """The form of the answer, whose schema is not apart here."""
    if not form or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": _rest(form)}


def _rest(typed: dict) -> dict:
    """What a tool or a form has beside its type, which a chat has apart."""
    return {name: own for name, own in typed.items() if name != "type"}


@dataclass
class ResponsesShape(ChatShape):
    """The answer as items, or as the events in which they grow.

    given: the request of which an answer repeats some.
    """

    given: Responses = field(kw_only=True)
    number: int = 0
    open: dict | None = None  # the item that grows
    items: list[dict] = field(default_factory=list)

    prefix = "resp"
    over = b""

    def answer(self) -> dict:
        """The whole response."""
        if not self.items:  # it was not streamed
            for (_, part), text in self.parts.items():
                self.items.append(_item(part, text))
            done = self.done[0]
            self.items += [_call(call["name"], call["arguments"]) for call in done.calls]
            if done.calls and not done.called:
                self.items[-1]["status"] = "incomplete"
        return self._response(self._status()) | self.figures()

    def _status(self) -> str:
        ended = self.done[0].result.finish_reason
        return "incomplete" if ended == "length" else "completed"

    def _response(self, status: str) -> dict:
        cut, asked = status == "incomplete", self.given
        return {
            "usage": self.usage() if self.done else None,
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens,
            "model": self.model, "output": self.items, "metadata": {}, "store": False,
            "parallel_tool_calls": asked.parallel_tool_calls, "previous_response_id": None,
            "temperature": asked.temperature, "top_p": asked.top_p, "text": asked.text,
            "tool_choice": asked.tool_choice, "tools": asked.tools, "truncation": "disabled",
        }  # fmt: skip

    def usage(self) -> dict:
        made = self.completion_tokens
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + made,
        }

    def start(self) -> Iterator[dict]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def begin(self, index: int) -> Iterator[dict]:
        yield from ()

    def piece(self, piece: TextPiece | CallPiece) -> Iterator[dict]:
        if isinstance(piece, CallPiece):
            yield from self._call_piece(piece.call)
            return
        if self.open is None or self.open["type"] != _KINDS[piece.part]:
            yield from self._close()
            self.open = _item(piece.part, "")
            yield from self._opened()
        text = self._parts()[0]
        text["text"] += piece.text
        yield self._event(_NAMES[piece.part] + ".delta", **self._place(), delta=piece.text)

    def end(self, done: Finished) -> Iterator[dict]:
        yield from self._close("completed" if done.called or not done.calls else "incomplete")
        status = self._status()
        yield self._event(f"response.{status}", response=self._response(status))

    def _call_piece(self, part: CallPart) -> Iterator[dict]:
        index = {"output_index": len(self.items)}
        if part.name:
            yield from self._close()
            self.open, index = _call(part.name, ""), {"output_index": len(self.items)}
            item = self.open | {"status": "in_progress"}
            yield self._event("response.output_item.added", **index, item=item)
        assert self.open is not None
        self.open["arguments"] += part.arguments
        if part.arguments:
            place = index | {"item_id": self.open["id"], "delta": part.arguments}
            yield self._event("response.function_call_arguments.delta", **place)

    def _parts(self) -> list[dict]:
        assert self.open is not None
        return self.open["content" if self.open["type"] == "message" else "summary"]

    def _place(self) -> dict:
        assert self.open is not None
        message = self.open["type"] == "message"
        place = {"item_id": self.open["id"], "output_index": len(self.items)}
        return place | ({"content_index": 0, "logprobs": []} if message else {"summary_index": 0})

    def _opened(self) -> Iterator[dict]:
        assert self.open is not None
        index, (part,) = {"output_index": len(self.items)}, self._parts()
        parts = "content" if self.open["type"] == "message" else "summary"
        empty = self.open | {parts: [], "status": "in_progress"}
        yield self._event("response.output_item.added", **index, item=empty)
        yield self._event(_ADDED[self.open["type"]] + ".added", **self._place(), part=dict(part))

    def _close(self, status: str = "completed") -> Iterator[dict]:
        if self.open is None:
            return
        if self.open["type"] == "function_call":
            place = {"output_index": len(self.items), "item_id": self.open["id"]}
            said = {name: self.open[name] for name in ("name", "arguments")}
            yield self._event("response.function_call_arguments.done", **place, **said)
        else:
            (part,), kind = self._parts(), self.open["type"]
            name = "output_text" if kind == "message" else "reasoning_summary_text"
            yield self._event(f"response.{name}.done", **self._place(), text=part["text"])
            yield self._event(_ADDED[kind] + ".done", **self._place(), part=part)
        done = self.open | {"status": status}
        yield self._event("response.output_item.done", output_index=len(self.items), item=done)
        self.items.append(done)
        self.open = None

    def _event(self, kind: str, **fields) -> dict:
        self.number += 1
        return {"type": kind, "sequence_number": self.number - 1, **fields}

    def sent(self, chunk: dict) -> bytes:
        return event(chunk, chunk["type"])

    def last(self) -> None:
        """There is none: the last event has the whole response."""

    def failed(self, refusal: Refusal) -> bytes:
        error = {"code": "server_error", "message": refusal.message}
        response = self._response("failed") | {"error": error}
        return self.sent(self._event("response.failed", response=response))


_KINDS = {"content": "message", "reasoning": "reasoning"}
_NAMES = {"content": "response.output_text", "reasoning": "response.reasoning_summary_text"}
_ADDED = {"message": "response.content_part", "reasoning": "response.reasoning_summary_part"}


def _item(part: str, text: str) -> dict:
    """An item with text: a message, or what the model thought."""
    if part == "reasoning":
        summary = [{"type": "summary_text", "text": text}]
        head = {"type": "reasoning", "id": f"rs_{uuid4().hex}", "status": "completed"}
        return head | {"summary": summary}
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    head = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant"}
    return head | {"status": "completed", "content": content}


def _call(name: str, arguments: str) -> dict:
    head = {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": uuid4().hex[:9]}
    return head | {"name": name, "arguments": arguments, "status": "completed"}
