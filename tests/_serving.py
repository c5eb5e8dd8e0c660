"""A real server on loopback, in a thread of the test's process."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from _patience import HANGING, until
from ane_serve.app import create_app
from ane_serve.pool import Model
from ane_serve.server import listener
import uvicorn


@contextmanager
def serving(*models: Model, **options) -> Iterator[str]:
    """The address of a server of these models; options are those of `create_app`."""
    app = create_app(list(models), **options)
    with served(app) as address:
        yield address


@contextmanager
def served(app, **options) -> Iterator[str]:
    """The address of a server of an application; options are uvicorn's."""
    quiet = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
    config = uvicorn.Config(app, **quiet | options)
    server, listening = uvicorn.Server(config), listener()
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        if hasattr(app.state, "jobs"):
            app.state.jobs.close()
        server.should_exit = True
        thread.join(HANGING)
        assert not thread.is_alive(), "the server does not stop"
