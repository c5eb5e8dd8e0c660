"""Check every request before a route sees it: API key and its limits, host, content type, size.

A web page in a browser can send requests to this machine. So the Content-Type of a body has to be
JSON, for which a browser asks permission first, and without an API key the Host has to be this
machine's own name, which a foreign name that resolves to this machine (DNS rebinding) is not.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
import logging
import re
from uuid import uuid4

from ane_serve.api.answers import as_json
from ane_serve.api.refusal import Refusal
from ane_serve.jobs import disconnected
from ane_serve.keys import Key, WrongKeys, find_key
from ane_serve.metrics import Metrics, Note

OPEN = ("/", "/health")  # paths that need no key
LOCAL = ("localhost", "127.0.0.1", "[::1]")

log = logging.getLogger("ane_serve")


@dataclass
class Middleware:
    """Wraps the routes: checks each request, counts and logs it, and answers its errors.

    keys: the API keys of which clients must send one, if any. seconds: until a body has to be
    there. body: most bytes of one.
    """

    app: Callable
    metrics: Metrics
    keys: Sequence[Key]
    seconds: float
    body: int
    wrong: WrongKeys = field(default_factory=WrongKeys)

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        note = Note(uuid4().hex)
        answered = _Answered(send, note.id, scope["path"])
        scope.setdefault("state", {})["note"] = note
        try:
            key = await self._check(scope, receive)
            if key is not None:
                note.facts["key"] = key.name
            with nullcontext() if key is None or scope["method"] != "POST" else key.used():
                body = await self._read(scope, receive)
                await self.app(scope, _again(body, receive), answered)
        except Refusal as refusal:
            note.refused(refusal)
            await answered.refuse(refusal)
        except ConnectionError:
            pass
        except Exception:
            log.exception("request %s", note.id)
            failed = Refusal(500, "the server failed; its log says why", code="internal_error")
            note.refused(failed)
            await answered.refuse(failed)
        finally:
            route = scope.get("route")
            known = getattr(route, "path", "other")
            status = answered.status or 499  # nginx's number for a client that left
            self.metrics.done(note, scope["method"], scope["path"], known, status)

    async def _check(self, scope: dict, receive: Callable) -> Key | None:
        """The key that a request shows; raises Refusal where its headers do not allow it."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        key = None
        if not self.keys:
            host = re.sub(r":\d*$", "", headers.get(b"host", LOCAL[0]))
            if host.lower() not in LOCAL:
                raise Refusal(403, "without an API key this server is for localhost alone")
        elif scope["path"] not in OPEN:
            scheme, _, shown = headers.get(b"authorization", "").partition(" ")
            given = [shown if scheme.lower() == "bearer" else "", headers.get(b"x-api-key", "")]
            key = next(filter(None, (find_key(self.keys, each) for each in given)), None)
            if key is None:
                if any(given):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(disconnected(receive), self.wrong.wait())
                raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            raise Refusal(415, "a body has to be sent as application/json")
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > self.body:
            raise self._too_long()
        return key

    def _too_long(self) -> Refusal:
        return Refusal(413, f"a body has at most {self.body:,} bytes", code="body_too_long")

    async def _read(self, scope: dict, receive: Callable) -> bytes:
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > self.body:
                        raise self._too_long()
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {self.seconds:g} s") from None
        return b"".join(parts)


def _again(body: bytes, receive: Callable) -> Callable:
    """A `receive` that gives a body again that was read, then what comes after it."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> dict:
        return left.pop() if left else await receive()

    return replay


class _Answered:
    """A `send` that notes the status, and adds the request's id to the headers."""

    def __init__(self, send: Callable, name: str, path: str):
        self._send, self.id, self._path, self.status = send, name, path, None

    async def __call__(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = (b"x-request-id", b"request-id")  # OpenAI's clients read one, Anthropic's one
            message["headers"] = [*message["headers"], *((n, self.id.encode()) for n in names)]
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal; raises ConnectionError where an answer has begun already."""
        if self.status is not None:
            raise ConnectionError  # the server ends what cannot be completed
        status, told = refusal.sent(self._path)
        body = as_json(told)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        pairs = [(k.encode(), v.encode()) for k, v in (headers | refusal.headers).items()]
        await self({"type": "http.response.start", "status": status, "headers": pairs})
        await self({"type": "http.response.body", "body": body})
