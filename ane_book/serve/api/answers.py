"""Answers in OpenAI's shapes, whole or in chunks, with the figures that the book's source gives.

Beside OpenAI's fields there are `prefill_tps` and `decode_tps`, tokens per second of the engine,
and `elapsed_s` since the request came. A request in the source's form gets `text`, `prompt_tokens`
and `gen_tokens` as well.
"""

import base64
from dataclasses import dataclass, field
import json
import time
from uuid import uuid4

from ane_book.serve.slot import Finished
import numpy as np

__all__ = ["ChatShape", "CompletionShape", "as_json", "event", "vectors"]


def as_json(value: object) -> bytes:
    """JSON as UTF-8; what no UTF-8 can say, half a surrogate, as JSON's own escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + (value if isinstance(value, bytes) else as_json(value)) + b"\n\n"


@dataclass
class _Shape:
    """An answer under way: what is known of it, and how that is said."""

    model: str
    seal: str
    prompt_tokens: int = 0  # of all prompts
    done: dict[int, Finished] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))

    whole, chunk, prefix = "", "", ""

    def __post_init__(self):
        self.id = f"{self.prefix}-{uuid4().hex}"

    def add(self, done: Finished) -> None:
        """Take an answer that is whole."""
        self.done[done.index] = done
        self.texts.append(done.result.text)

    def _head(self, kind: str) -> dict:
        said = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return said | {"system_fingerprint": f"fp_{self.seal[:12]}"}

    @property
    def completion_tokens(self) -> int:
        return sum(len(each.result.token_ids) for each in self.done.values())

    @property
    def cached(self) -> int:
        """Prompt tokens that were in the cache when first asked for."""
        return self.done[0].cached if self.done else 0

    def usage(self) -> dict:
        made = self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self.prompt_tokens + made,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def figures(self) -> dict:
        """What the source measures, of the first answer."""
        first = self.done[0].result
        rates = {"prefill_tps": first.prefill_tps, "decode_tps": first.decode_tps}
        rates = {name: rate and round(rate, 2) for name, rate in rates.items()}
        return rates | {"elapsed_s": round(time.monotonic() - self.start, 4)}

    def answer(self) -> dict:
        """All answers, when they are done."""
        choices = [self._choice(done) for _, done in sorted(self.done.items())]
        head = self._head(self.whole)
        return head | {"choices": choices, "usage": self.usage()} | self.figures()

    def last(self) -> dict:
        """The chunk that says what it took."""
        return self._head(self.chunk) | {"choices": [], "usage": self.usage()} | self.figures()

    def _chunk(self, choice: dict) -> dict:
        return self._head(self.chunk) | {"choices": [choice]}


class ChatShape(_Shape):
    """POST /v1/chat/completions."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _choice(self, done: Finished) -> dict:
        message = {"role": "assistant", "content": done.result.text, "refusal": None}
        return {
            "index": done.index,
            "message": message,
            "logprobs": None,
            "finish_reason": done.result.finish_reason,
        }

    def begin(self, index: int) -> dict:
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> dict:
        return self._delta(index, {"content": text})

    def end(self, done: Finished) -> dict:
        return self._delta(done.index, {}, done.result.finish_reason)

    def _delta(self, index: int, delta: dict, reason: str | None = None) -> dict:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._chunk(choice)


@dataclass
class CompletionShape(_Shape):
    """POST /v1/completions; `plain` as the source asks it."""

    plain: bool = False

    whole, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def figures(self) -> dict:
        if not self.plain:
            return super().figures()
        first = self.done[0].result
        own = {"text": first.text, "prompt_tokens": first.prompt_tokens}
        return own | {"gen_tokens": len(first.token_ids)} | super().figures()

    def _choice(self, done: Finished) -> dict:
        return self._text(done.index, done.result.text, done.result.finish_reason)

    def begin(self, index: int) -> None:
        return None

    def piece(self, index: int, text: str) -> dict:
        return self._chunk(self._text(index, text, None))

    def end(self, done: Finished) -> dict:
        return self._chunk(self._text(done.index, "", done.result.finish_reason))

    def _text(self, index: int, text: str, reason: str | None) -> dict:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


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
