"""The answers of the server: each is sent while a job makes it, and leaves with its client."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ane_serve.api.answers import as_json, vectors
from ane_serve.api.refusal import Refusal
from ane_serve.generation import Finished
from ane_serve.jobs import Gone, Job
from ane_serve.metrics import Note
from starlette.responses import Response

#: Has a job done while its client, who is received from, waits.
Doing = Callable[[Job, Any], AbstractAsyncContextManager]


class Json(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return as_json(content)


class JobAnswer(Response):
    """An answer made by a job while the client waits; a subclass says what is sent."""

    def __init__(self, doing: Doing, job: Job, note: Note):
        super().__init__()
        self._doing, self._job, self._note = doing, job, note
        note.facts["model"] = job.model.name

    async def __call__(self, scope, receive, send) -> None:
        job, note = self._job, self._note
        try:
            async with self._doing(job, receive):
                await self._made(job.events(), send, scope, receive)
        except Gone:
            note.facts["finish"] = "client left"
        finally:
            if job.begun is not None:
                note.facts["queue_s"] = note.since(job.begun)

    async def _made(self, events: AsyncIterator, send, scope, receive) -> None:
        """Send the events of the job as an answer."""
        raise NotImplementedError


class TextAnswer(JobAnswer):
    """Text, whole or in chunks."""

    def __init__(self, doing: Doing, job: Job, note: Note, shape, asked):
        super().__init__(doing, job, note)
        self._shape, self._asked = shape, asked

    async def _made(self, events: AsyncIterator, send, scope, receive) -> None:
        shape = self._shape
        shape.prompt_tokens = (await anext(events)).prompt_tokens
        self._note.facts["prompt_tokens"] = shape.prompt_tokens
        if self._asked.stream:
            await self._stream(events, send)
            return
        async for _ in self._watched(events):
            pass
        await Json(shape.answer())(scope, receive, send)

    async def _watched(self, events: AsyncIterator) -> AsyncIterator:
        """Pass the events on, after adding them to the answer and to the log."""
        facts, shape = self._note.facts, self._shape
        async for step in events:
            shape.add(step)
            if not isinstance(step, Finished):
                facts.setdefault("first_s", self._note.since())
            else:
                facts |= {"completion_tokens": shape.completion_tokens, **shape.rates()}
                facts |= {"cached_tokens": shape.cached, "finish": step.result.finish_reason}
            yield step

    async def _stream(self, events: AsyncIterator, send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        options = self._asked.stream_options
        counts = options is not None and options.include_usage
        try:
            async for chunk in self._chunks(events, counts):
                body = self._shape.sent(chunk | {"usage": chunk.get("usage")} if counts else chunk)
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Refusal as refusal:
            body = self._shape.failed(refusal)
            self._note.refused(refusal)
        else:
            body = self._shape.over
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _chunks(self, events: AsyncIterator, counts: bool) -> AsyncIterator[dict]:
        shape, begun = self._shape, set()
        for chunk in shape.start():
            yield chunk
        async for step in self._watched(events):
            if step.index not in begun:
                begun.add(step.index)
                for chunk in shape.begin(step.index):
                    yield chunk
            for chunk in shape.end(step) if isinstance(step, Finished) else shape.piece(step):
                yield chunk
        if counts:
            yield shape.last()


class VectorsAnswer(JobAnswer):
    """Vectors of texts."""

    def __init__(self, doing: Doing, job: Job, note: Note, form: str):
        super().__init__(doing, job, note)
        self._form = form

    async def _made(self, events: AsyncIterator, send, scope, receive) -> None:
        made = [both async for both in events]
        rows, tokens = [row for row, _ in made], sum(count for _, count in made)
        self._note.facts["prompt_tokens"] = tokens
        answer = vectors(self._job.model.name, rows, tokens, self._form)
        await Json(answer)(scope, receive, send)


class TokensAnswer(JobAnswer):
    """The tokens of a prompt."""

    async def _made(self, events: AsyncIterator, send, scope, receive) -> None:
        *_, made = [step async for step in events]
        await Json(made)(scope, receive, send)
