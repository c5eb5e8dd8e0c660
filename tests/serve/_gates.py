"""An engine that a test holds, and lets go call by call; clients of bare sockets."""

from collections.abc import Callable
from contextlib import contextmanager
import dataclasses
import json
import socket
from threading import Semaphore

from _patience import HANGING, until
from _serving import served
from ane_serve.app import create_app
from ane_serve.pool import Model
import httpx

CHAT = "/v1/chat/completions"


class Held:
    """A model whose runner waits before every call until `let` allows one more."""

    def __init__(self, model: Model):
        self.calls, self._allowed, self._waits = 0, Semaphore(0), False
        self.model = dataclasses.replace(model, slots=lambda: self._hold(model.slots()))

    def _hold(self, slots: list) -> list:
        for slot in slots:
            runner = slot.session._runner
            runner.forward = self._gated(runner.forward)
        return slots

    def _gated(self, forward: Callable) -> Callable:
        def gated(*arguments):
            self._waits = True
            assert self._allowed.acquire(timeout=HANGING)
            self._waits = False
            self.calls += 1
            return forward(*arguments)

        return gated

    def let(self, calls: int = 10_000) -> None:
        self._allowed.release(calls)

    def hold(self) -> None:
        """Wait before the next call again."""
        while self._allowed.acquire(blocking=False):
            pass

    def wait(self) -> None:
        """Until the engine stands before a call."""
        until(lambda: self._waits)


@contextmanager
def bare(
    address: str, body: dict | None = None, part: float = 1.0, buffer: int | None = None,
    key: str = "none", path: str = CHAT,
):  # fmt: skip
    """A socket that has sent a request, or the first part of its body, and read nothing."""
    host, port = address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n"
    head += f"Authorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket() as client:
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.settimeout(HANGING)
        client.connect((host, int(port)))
        client.sendall(head.encode() + content[: round(part * len(content))])
        yield client


def chat(text: str = "Hello", **fields) -> dict:
    """The body of a chat request."""
    asked = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    return asked | fields


def ask(address: str, key: str = "none", **fields) -> httpx.Response:
    """The answer to a chat request."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(address + CHAT, json=chat(**fields), headers=headers, timeout=HANGING)


def out_of_time(held: Held, path: str, body: dict) -> tuple[httpx.Response, int]:
    """The answer to a request whose engine stops after eight calls, or one where nothing is
    streamed, and the deadline in seconds that ended it.

    Where a busy machine has not begun to answer by then, a longer one is tried: a stream has to be
    in the middle.
    """
    for seconds in (1, 4, 16, 64):
        app = create_app([held.model], seconds=seconds)
        held.hold()
        with served(app) as address:
            held.let(8 if body["stream"] else 1)
            found = httpx.post(address + path, json=body, timeout=HANGING)
            held.let()
            until(lambda jobs=app.state.jobs: not jobs.running and not jobs.waiting)
            assert "internal_error" not in httpx.get(f"{address}/metrics", timeout=HANGING).text
        if not body["stream"] or found.text.count("\n\n") > 4:
            break
    return found, seconds
