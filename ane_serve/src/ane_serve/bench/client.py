"""Benchmark a server with OpenAI's API over HTTP: LM Studio, llama.cpp, mlx-lm, ours.

It uses the standard library's HTTP client: all it needs is one POST and the lines of the answer,
timed as they arrive, with neither a proxy of the environment nor a retry in between.

References:
- OpenAI's API, chat completions as a stream of `data:` lines that ends with `[DONE]`
- llama.cpp, tools/server: `timings` beside the usage, in tokens a second
- LM Studio: `stats`, where it gives them
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
import http.client
import json
from math import isfinite
import socket
import ssl
from threading import Timer
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from ane_book.errors import AneBookError, InvalidInput
from ane_serve.bench.answer import TimedAnswer, timed
from ane_serve.bench.prompts import Prompt

MOST_LINE = 1 << 20  # bytes of a line of a stream, or of a whole answer that is none
MOST_STREAM = 1 << 26  # bytes of a stream
CONNECT_S = 10.0  # seconds for a server to take a connection
FACTS = ("usage", "timings", "stats", "prefill_tps", "decode_tps")  # in a stream, beside the text


class ServerError(AneBookError):
    """A server that was asked by its URL did not answer as OpenAI's API has it."""


class Server:
    """An OpenAI-compatible server.

    url: up to its /v1, which is added to one without a path. model: its name there; None for the
    only one that it has. key: goes along as a bearer token. timeout: seconds for each answer, from
    first byte to last.

    Raises InvalidInput for an invalid URL, and ServerError for every failure of the server.
    """

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, timeout: float = 300
    ):
        self.where = url = url.rstrip("/")
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            parts = None
        if not parts or parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{url!r} is not a URL such as http://127.0.0.1:1234/v1")
        if parts.username or parts.query or parts.fragment:
            raise InvalidInput(f"{url!r}: give host, port and path; a key is in ANE_BOOK_API_KEY")
        self._host = parts.hostname
        self._secure, self._path = parts.scheme == "https", parts.path or "/v1"
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if key is not None:
            if not key.isascii() or not key.isprintable():
                raise InvalidInput("an API key is printable ASCII")
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout = timeout
        self.model = model or self._only_model()
        self.name = f"{self.model} at {parts.netloc}"

    def ask(self, prompt: Prompt, mark: int, max_tokens: int, sampling: dict) -> TimedAnswer:
        """The answer to a prompt, streamed; raises ServerError."""
        body = {
            "model": self.model,
            "messages": prompt.messages(mark),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        told = _Told()
        with self._answer("POST", "/chat/completions", body) as response:
            kind = response.getheader("Content-Type", "")
            if not kind.startswith("text/event-stream"):
                raise ServerError(f"it did not stream, but sent {kind or 'no type'!r}")
            text, first, total, pieces = timed(told.read(_events(response)))
        tokens = told.tokens("completion_tokens")
        if tokens is None:
            tokens = pieces or None
        prompt_tokens, cached = told.tokens("prompt_tokens"), told.cached()
        return TimedAnswer(text, prompt_tokens, tokens, first, total, pieces, cached, told.rates())

    def _only_model(self) -> str:
        with self._answer("GET", "/models") as response:
            raw = response.read(MOST_LINE + 1)
        ids = [one.get("id") for one in _list(_parsed(raw), "data") if isinstance(one, dict)]
        names = [name for name in ids if isinstance(name, str)]
        if len(names) != 1:
            there = f"it has {', '.join(names[:20])}" if names else "it names none"
            raise ServerError(f"{self.where}: {there}; name one: NAME={self.where}")
        return names[0]

    @contextmanager
    def _answer(
        self, method: str, path: str, body: dict | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; what goes wrong until its answer is read is raised as ServerError."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=min(CONNECT_S, self._timeout))
        deadline = _Deadline(self._timeout)
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout)
            deadline.start(connection.sock)
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, content, self._headers)
            with closing(connection.getresponse()) as response:
                if response.status != 200:
                    hint = "; ANE_BOOK_API_KEY gives one" if response.status == 401 else ""
                    raise ServerError(f"status {response.status}: {_said(response)}{hint}")
                yield response
        except (OSError, http.client.HTTPException, ServerError) as error:
            late = f"no whole answer within {self._timeout:g} s; --timeout gives it more"
            raise ServerError(
                f"{self.where}: {late if deadline.passed else _reason(error)}"
            ) from None
        finally:
            deadline.cancel()
            connection.close()


class _Deadline:
    """Ends a connection at its time, even one that still sends a few bytes now and then."""

    def __init__(self, seconds: float):
        self.passed = False
        self._connection: socket.socket | None = None
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True

    def start(self, connection: socket.socket) -> None:
        self._connection = connection
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self.passed = True
        with suppress(OSError):  # it has just ended by itself
            assert self._connection is not None, "`start` sets it"
            self._connection.shutdown(socket.SHUT_RDWR)


class _Told:
    """Reads a stream: its text, and the usage and rates that it reports."""

    def __init__(self):
        self._finished = False
        self._facts: dict[str, Any] = {}

    def read(self, events: Iterator[dict]) -> Iterator[str]:
        """The pieces of text; raises ServerError where the stream ends before the answer does."""
        for event in events:
            if event.get("error"):
                raise ServerError(f"it failed while it answered: {_message(event)}")
            self._facts |= {name: event[name] for name in FACTS if event.get(name) is not None}
            choice: Any = next(iter(_list(event, "choices")), {})
            if not isinstance(choice, dict):
                raise ServerError(f"choices are no objects: {str(choice)[:100]!r}")
            self._finished |= choice.get("finish_reason") is not None
            yield _piece(choice)
        if not self._finished:
            raise ServerError("it closed the stream before the end of its answer")

    def tokens(self, name: str) -> int | None:
        """A count of tokens from the usage, where the server gives it."""
        return _count(_of(self._facts, "usage").get(name))

    def cached(self) -> int:
        """Tokens of the prompt that the server says it took from a cache."""
        details = _of(_of(self._facts, "usage"), "prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) or _count(
            _of(self._facts, "timings").get("cache_n")
        )
        return min(cached or 0, self.tokens("prompt_tokens") or 0)

    def rates(self) -> dict[str, float]:
        """Tokens a second that the server reports itself."""
        timings, stats = _of(self._facts, "timings"), _of(self._facts, "stats")
        reported = {
            "prefill": self._facts.get("prefill_tps") or timings.get("prompt_per_second"),
            "decode": self._facts.get("decode_tps")
            or timings.get("predicted_per_second")
            or stats.get("tokens_per_second"),
        }
        return {name: float(rate) for name, rate in reported.items() if _is_rate(rate)}


def _events(response: http.client.HTTPResponse) -> Iterator[dict]:
    """The objects of a stream, as they arrive."""
    rest, total = b"", 0
    while chunk := response.read1(1 << 16):
        total += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE or total > MOST_STREAM:
            raise ServerError(f"it sent more than {total:,} bytes for one answer")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                yield _parsed(data)


def _parsed(raw: bytes) -> dict:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ServerError(f"it did not answer with a JSON object: {raw[:100]!r}")
    return value


def _piece(choice: dict) -> str:
    """The text that an event adds, reasoning included, since that is tokens, too."""
    delta = _of(choice, "delta")
    texts = [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
    return "".join(text for text in texts if isinstance(text, str))


def _of(value: dict, name: str) -> dict:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _list(value: dict, name: str) -> list:
    items = value.get(name)
    return items if isinstance(items, list) else []


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 1 << 31 else None


def _is_rate(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isfinite(value) and value > 0


def _said(response: http.client.HTTPResponse) -> str:
    """The error message in an answer."""
    raw = response.read(MOST_LINE)
    try:
        return _message(_parsed(raw))
    except ServerError:
        return raw[:300].decode(errors="replace").strip() or response.reason


def _message(event: dict) -> str:
    error = event.get("error") or event.get("detail") or event
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:300]


def _reason(error: Exception) -> str:
    """Why there is no answer, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not one to trust: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as https needs it ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return "it did not take the connection in time"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; start the server first"
    if isinstance(error, http.client.IncompleteRead):
        return "it closed the stream before the end of its answer"
    if isinstance(error, http.client.HTTPException):
        return f"it does not speak HTTP as expected ({type(error).__name__}: {error})"
    return str(error) or type(error).__name__
