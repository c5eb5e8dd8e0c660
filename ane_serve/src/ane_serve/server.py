"""Run the application on an address, until a signal stops it.

At the first SIGTERM or Ctrl-C, new requests and those that wait are refused, and those that run are
finished. The second one ends the server at once.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from ane_book.errors import InvalidInput
from ane_serve.json_lines import listen
from ane_serve.metrics import log_lines
from ane_serve.pool import TEXT
from fastapi import FastAPI
import uvicorn

if TYPE_CHECKING:  # uvicorn's is one of two classes, by what is installed
    from uvicorn.protocols.http.h11_impl import H11Protocol as AutoHTTPProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol


#: Seconds until an idle connection is closed. Clients close theirs earlier, httpx after 5 s: if the
#: server did so first, a request that is on its way would be lost.
IDLE_S = 75
#: Seconds until the head of a request has to be there; `app.BODY_S` is for its body.
HEAD_S = 30.0


class Connection(AutoHTTPProtocol):
    """uvicorn's connection, with a limit of time for the head of a request.

    Else clients that never send one could hold every connection that the system allows, key or no
    key.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._late is None and not self._at_work():
            self._expect_head()
        super().data_received(data)
        if self._at_work():
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _at_work(self) -> bool:
        """Whether a request is here that has no whole answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """uvicorn's server, with the unix socket, and with this module's way to stop."""

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, path: Path | None, grace: float, told: str
    ):
        super().__init__(config)
        self._jobs, self._path, self._grace, self._told = app.state.jobs, path, grace, told
        self._busy: set[asyncio.StreamWriter] = set()  # of the socket

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._path is not None:
            model = self._jobs.pool.find(None, TEXT)
            self._lines, self._busy = await listen(self._path, self._jobs, model, self._grace)
        await super().startup(sockets)
        print(self._told, file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._path is not None:
            self._lines.close()
            self._path.unlink(missing_ok=True)
        await super().shutdown(sockets)
        while (self._jobs.running or self._busy) and not self.force_exit:
            await asyncio.sleep(0.05)  # a job's cache is put away after its answer

    def handle_exit(self, sig: int, frame) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._jobs.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again: a stop that was asked for is no failure."""
        signals = (signal.SIGINT, signal.SIGTERM)
        former = {sig: signal.signal(sig, self.handle_exit) for sig in signals}
        try:
            yield
        finally:
            for sig, handler in former.items():
                signal.signal(sig, handler)


def listener(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a socket that listens there, for `uvicorn.Server.run`; raises InvalidInput.

    TCP_NODELAY is set: asyncio does so only where a socket names its protocol, and these do not.
    Without it each piece of a stream waits for the last one to be acknowledged, up to 40 ms.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidInput(
            f"{host}:{port} cannot be listened on: {error.strerror}; --port takes another"
        ) from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    return listening


def run(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 8000,
    path: Path | None = None,
    grace: float = 600.0,
) -> bool:
    """Serve until a signal; returns whether all requests that ran were finished.

    path: of a unix socket to serve, too. grace: seconds for a request of that socket, and for those
    that run at the end. Raises InvalidInput where the address or the path cannot be used.
    """
    log_lines()
    listening = listener(host, port)
    pool = app.state.jobs.pool
    with pool.borrowed(next(iter(pool.models.values()))):
        pass  # a model that cannot be opened fails before the first request
    shown, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
    message = f"serving {', '.join(pool.models)} at http://{shown}:{port}/v1"
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=int(grace), timeout_keep_alive=IDLE_S, http=Connection,
    )  # fmt: skip
    server = _Server(config, app, path, grace, message)
    server.run(sockets=[listening])
    return not server.force_exit
