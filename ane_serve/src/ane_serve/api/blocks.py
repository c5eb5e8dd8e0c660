"""Answers of POST /v1/messages, in blocks of content: a thought, a text, calls of tools."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
import json
from uuid import uuid4

from ane_serve.api.answers import ChatShape, event
from ane_serve.api.refusal import Refusal
from ane_serve.generation import CallPiece, Finished, TextPiece
from ane_serve.tools.calls import CallPart
from pydantic_core import from_json


@dataclass
class MessageShape(ChatShape):
    """The answer as blocks of content, or as the events in which they grow.

    most: tokens of the answer, as the request has it.
    """

    most: int = field(kw_only=True)
    block: str = ""  # the type of the one that grows
    index: int = -1  # its place

    prefix = "msg"
    over = b""

    def answer(self) -> dict:
        """The whole message."""
        done, content = self.done[0], []
        for (_, part), text in self.parts.items():
            said = text.strip() if part == "reasoning" or done.calls else text
            if said:
                content.append(_block("thinking" if part == "reasoning" else "text", said))
        for call in done.calls:
            content.append(_block("tool_use", call["name"]) | {"input": _input(call["arguments"])})
        return self._message(content, self.usage()) | self._stop() | self.figures()

    def _message(self, content: list[dict], usage: dict) -> dict:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return head | {"content": content, "usage": usage}

    def usage(self) -> dict:
        return {
            "input_tokens": self.prompt_tokens - self.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.completion_tokens,
        }

    def _stop(self) -> dict:
        """Why the answer ended."""
        done = self.done[0]
        result, reason = done.result, "end_turn"
        if done.called:
            reason = "tool_use"
        elif result.stop is not None:
            reason = "stop_sequence"
        elif result.finish_reason == "length":
            whole = len(result.token_ids) >= self.most
            reason = "max_tokens" if whole else "model_context_window_exceeded"
        stop = result.stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop}

    def start(self) -> Iterator[dict]:
        message = self._message([], self.usage()) | {"stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}  # the prompt is still to be read

    def begin(self, index: int) -> Iterator[dict]:
        yield from ()

    def piece(self, piece: TextPiece | CallPiece) -> Iterator[dict]:
        if isinstance(piece, CallPiece):
            yield from self._call_piece(piece.call)
            return
        kind, text = ("thinking" if piece.part == "reasoning" else "text"), piece.text
        if self.block != kind:
            text = text.lstrip() if kind == "thinking" else text  # some think of nothing
            if not text:
                return
            yield from self._open(kind)
        yield self._grown({"type": f"{kind}_delta", kind: text})

    def _call_piece(self, part: CallPart) -> Iterator[dict]:
        if part.name:
            yield from self._open("tool_use", part.name)
        if part.arguments:
            yield self._grown({"type": "input_json_delta", "partial_json": part.arguments})

    def _open(self, kind: str, said: str = "") -> Iterator[dict]:
        yield from self._close()
        self.block, self.index = kind, self.index + 1
        block = _block(kind, said)
        yield {"type": "content_block_start", "index": self.index, "content_block": block}

    def _grown(self, delta: dict) -> dict:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}

    def _close(self) -> Iterator[dict]:
        if self.block:
            yield {"type": "content_block_stop", "index": self.index}

    def end(self, done: Finished) -> Iterator[dict]:
        yield from self._close()
        yield {"type": "message_delta", "delta": self._stop(), "usage": self.usage()}
        yield {"type": "message_stop"}

    def sent(self, chunk: dict) -> bytes:
        return event(chunk, chunk["type"])

    def failed(self, refusal: Refusal) -> bytes:
        return event(refusal.anthropic(), "error")

    def last(self) -> None:
        """There is none: the event before the last one has the usage."""


def _block(kind: str, said: str) -> dict:
    """A block of content; said: the text, or the name of the tool."""
    if kind == "tool_use":
        return {"type": kind, "id": uuid4().hex[:9], "name": said, "input": {}}
    return {"type": kind, kind: said} | ({"signature": ""} if kind == "thinking" else {})


def _input(arguments: str) -> dict:
    """The arguments of a call as an object; of one that was cut, those that are whole."""
    for read in (json.loads, lambda text: from_json(text, allow_partial=True)):
        with suppress(ValueError, RecursionError):
            return read(arguments)
    return {}
