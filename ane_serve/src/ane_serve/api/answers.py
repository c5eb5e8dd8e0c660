"""Answers in OpenAI's shapes, whole or in chunks, with figures of their speed.

Beside OpenAI's fields there are `prefill_tps` and `decode_tps`, tokens per second of the engine,
and `elapsed_s` since the request came. The server in maderix/ANE, pull request 26, called the
book's source, gives these; a request in its form gets `text`, `prompt_tokens` and `gen_tokens` too.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import json
import time
from uuid import uuid4

from ane_serve.api.refusal import Refusal
from ane_serve.generation import CallPiece, Finished, TextPiece, Token
from ane_serve.splitting import Part
from ane_serve.tools.calls import CallPart
import numpy as np


def as_json(value: object) -> bytes:
    """JSON as UTF-8; a lone surrogate, which UTF-8 cannot encode, as JSON's own escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def event(value: object, name: str = "") -> bytes:
    """A server-sent event, with a name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + (value if isinstance(value, bytes) else as_json(value)) + b"\n\n"


def counted(prompt: int, cached: int, generated: int = 0) -> dict:
    """The usage of a request: its prompt's tokens, those of them in the cache, and the answer's."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass
class _Shape:
    """Collects an answer in progress, and gives it as JSON, whole or in chunks."""

    model: str
    seal: str
    prompt_tokens: int = 0  # of all prompts
    done: dict[int, Finished] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    tokens: dict[int, list[Token]] = field(default_factory=dict)  # of each answer, if asked for
    begun: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))

    whole, chunk, prefix = "", "", ""
    over = event(b"[DONE]")  # what follows the last chunk

    def __post_init__(self):
        self.id = f"{self.prefix}-{uuid4().hex}"

    def add(self, made: TextPiece | CallPiece | Finished) -> None:
        """Take a part of an answer, or its end."""
        if made.tokens:
            self.tokens.setdefault(made.index, []).extend(made.tokens)
        if isinstance(made, Finished):
            self.done[made.index] = made
            self.texts.append(made.result.text)

    def _head(self, kind: str) -> dict:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"system_fingerprint": f"fp_{self.seal[:12]}"}

    @property
    def completion_tokens(self) -> int:
        return sum(len(each.result.token_ids) for each in self.done.values())

    @property
    def cached(self) -> int:
        """Prompt tokens that were in the cache when first asked for."""
        return self.done[0].cached if self.done else 0

    def usage(self) -> dict:
        return counted(self.prompt_tokens, self.cached, self.completion_tokens)

    def rates(self) -> dict:
        """Tokens per second of the first answer."""
        first = self.done[0].result
        rates = {"prefill_tps": first.prefill_tps, "decode_tps": first.decode_tps}
        return {name: rate and round(rate, 2) for name, rate in rates.items()}

    def figures(self) -> dict:
        """The figures that the source gives, of the first answer."""
        return self.rates() | {"elapsed_s": round(time.monotonic() - self.begun, 4)}

    def answer(self) -> dict:
        """The whole response, when all answers are done."""
        choices = [self._choice(done) for _, done in sorted(self.done.items())]
        head = self._head(self.whole)
        return head | {"choices": choices, "usage": self.usage()} | self.figures()

    # The same in chunks: at the start, before an answer, for each piece, after an answer, at last.

    def start(self) -> Iterator[dict]:
        yield from ()

    def begin(self, index: int) -> Iterator[dict]:
        yield from ()

    def piece(self, piece: TextPiece | CallPiece) -> Iterator[dict]:
        raise NotImplementedError

    def end(self, done: Finished) -> Iterator[dict]:
        raise NotImplementedError

    def last(self) -> dict | None:
        """The last chunk, with usage and figures."""
        return self._head(self.chunk) | {"choices": [], "usage": self.usage()} | self.figures()

    def sent(self, chunk: dict) -> bytes:
        """A chunk as a server-sent event."""
        return event(chunk)

    def failed(self, refusal: Refusal) -> bytes:
        """What a stream ends with that cannot go on."""
        return event(refusal.body())

    def _choice(self, done: Finished) -> dict:
        """A whole answer."""
        raise NotImplementedError

    def _chunk(self, choice: dict) -> dict:
        return self._head(self.chunk) | {"choices": [choice]}


@dataclass
class ChatShape(_Shape):
    """POST /v1/chat/completions. What a model thinks is in `reasoning_content`, as DeepSeek has it,
    whose name for it most clients know."""

    parts: dict[tuple[int, Part], str] = field(default_factory=dict)  # of each answer

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def add(self, made: TextPiece | CallPiece | Finished) -> None:
        super().add(made)
        if isinstance(made, TextPiece):
            where = made.index, made.part
            self.parts[where] = self.parts.get(where, "") + made.text

    def _choice(self, done: Finished) -> dict:
        said = self.parts.get((done.index, "content"), "")
        message: dict = {"role": "assistant", "content": said, "refusal": None}
        if (thought := self.parts.get((done.index, "reasoning"))) is not None:
            message["reasoning_content"] = thought.strip()
        if done.calls:
            message |= {"content": said.strip() or None, "tool_calls": called(done.calls)}
        return {
            "index": done.index,
            "message": message,
            "logprobs": _of_chat(self.tokens.get(done.index)),
            "finish_reason": _reason(done),
        }

    def begin(self, index: int) -> Iterator[dict]:
        yield self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, piece: TextPiece | CallPiece) -> Iterator[dict]:
        if isinstance(piece, CallPiece):
            delta: dict = {"tool_calls": [_part(piece.call)]}
        else:
            name = "content" if piece.part == "content" else "reasoning_content"
            delta = {name: piece.text}
        yield self._delta(piece.index, delta, None, piece.tokens)

    def end(self, done: Finished) -> Iterator[dict]:
        yield self._delta(done.index, {}, _reason(done), done.tokens)

    def _delta(
        self, index: int, delta: dict, reason: str | None = None, tokens: Sequence[Token] = ()
    ) -> dict:
        choice = {"delta": delta, "logprobs": _of_chat(tokens), "finish_reason": reason}
        return self._chunk({"index": index} | choice)


def called(calls: Sequence[dict]) -> list[dict]:
    """Calls of tools with ids; nine letters or digits, since a template of Mistral's takes no
    others."""
    return [{"id": uuid4().hex[:9], "type": "function", "function": call} for call in calls]


def _part(part: CallPart) -> dict:
    """A part of a call as a stream has it: id and name come once, before the arguments."""
    if not part.name:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    (call,) = called([{"name": part.name, "arguments": part.arguments}])
    return {"index": part.index} | call


def _reason(done: Finished) -> str:
    return "tool_calls" if done.called else done.result.finish_reason


@dataclass
class CompletionShape(_Shape):
    """POST /v1/completions; plain: asked in the source's form."""

    plain: bool = False

    whole, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def figures(self) -> dict:
        if not self.plain:
            return super().figures()
        first = self.done[0].result
        own = {"text": first.text, "prompt_tokens": first.prompt_tokens}
        return own | {"gen_tokens": len(first.token_ids)} | super().figures()

    def _choice(self, done: Finished) -> dict:
        tokens = self.tokens.get(done.index, ())
        return self._text(done.index, done.result.text, tokens, done.result.finish_reason)

    def piece(self, piece: TextPiece | CallPiece) -> Iterator[dict]:
        assert isinstance(piece, TextPiece), "a completion offers no tools"
        yield self._chunk(self._text(piece.index, piece.text, piece.tokens, None))

    def end(self, done: Finished) -> Iterator[dict]:
        yield self._chunk(self._text(done.index, "", done.tokens, done.result.finish_reason))

    def _text(self, index: int, text: str, tokens: Sequence[Token], reason: str | None) -> dict:
        choice = {"text": text, "logprobs": _of_completion(tokens), "finish_reason": reason}
        return {"index": index} | choice


def _of_chat(tokens: Sequence[Token] | None) -> dict | None:
    """Log probabilities as a chat has them; `bytes`, joined, are those of the answer."""

    def told(said: bytes, logprob: float) -> dict:
        text = said.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(said)}

    if not tokens:
        return None
    content = [
        told(each.said, each.logprob) | {"top_logprobs": [told(*one) for one in each.likeliest]}
        for each in tokens
    ]
    return {"content": content, "refusal": None}


def _of_completion(tokens: Sequence[Token]) -> dict | None:
    """Log probabilities as a completion has them; no offsets, since a token may be a part of a
    character, which stands as "bytes:\\xe6" then, as OpenAI has it."""

    def text(said: bytes) -> str:
        try:
            return said.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)

    if not tokens:
        return None
    return {
        "tokens": [text(each.said) for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [{text(said): p for said, p in each.likeliest} for each in tokens],
        "text_offset": None,
    }


def vectors(model: str, rows: list[np.ndarray], tokens: int, form: str) -> dict:
    """POST /v1/embeddings: vectors (C,) float32."""
    data = [
        {"object": "embedding", "index": i, "embedding": _numbers(row, form)}
        for i, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _numbers(row: np.ndarray, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(str(x)) for x in row]  # as few digits as tell one float32 from the next
