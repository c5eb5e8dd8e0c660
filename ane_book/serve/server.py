"""The application on an address, until it is told to stop.

The first SIGTERM or Ctrl-C: nothing new is taken, what waits is refused, what runs is finished. The
second one ends at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import signal
import sys

from ane_book.errors import InvalidInput
from ane_book.serve.watch import log_lines
from fastapi import FastAPI
import uvicorn

__all__ = ["run"]


class _Server(uvicorn.Server):
    """uvicorn's, with our way to end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI):
        super().__init__(config)
        self._work = app.state.work

    def handle_exit(self, sig: int, frame) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._work.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again: a stop that was asked for is no failure."""
        wanted = (signal.SIGINT, signal.SIGTERM)
        former = {sig: signal.signal(sig, self.handle_exit) for sig in wanted}
        try:
            yield
        finally:
            for sig, handler in former.items():
                signal.signal(sig, handler)


def run(app: FastAPI, host: str = "127.0.0.1", port: int = 8000, grace: float = 600.0) -> bool:
    """Serve until a signal; whether everything that ran was finished.

    grace: seconds for that. Raises InvalidInput where the address cannot be had.
    """
    log_lines()
    config = uvicorn.Config(
        app, host=host, port=port, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=int(grace), lifespan="off", ws="none",
    )  # fmt: skip
    server = _Server(config, app)
    try:
        listening = config.bind_socket()
    except SystemExit:
        raise InvalidInput(
            f"{host}:{port} cannot be listened on: another program may have the port (--port)"
        ) from None
    names, port = ", ".join(app.state.work.pool.models), listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {names} at http://{shown}:{port}/v1", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
    return not server.force_exit
