"""`ane-book serve`: bundles behind OpenAI's API."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.errors import InvalidInput
import typer

if TYPE_CHECKING:
    from ane_book.serve.pool import Model

__all__ = ["serve"]

NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}

Models = Annotated[
    list[str],
    typer.Argument(
        help="Reference models, bundles' folders, or weights to convert; NAME=MODEL names one."
    ),
]


def serve(
    models: Models,
    host: Annotated[str, typer.Option(help="Address; any but loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="ANE_BOOK_API_KEY", help="What clients have to show.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin of pages that may ask, as http://host:port.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Most bytes of models at once, such as 4GB.")
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Most requests that wait.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request.")] = 600.0,
    precision: options.Precision = "fp16",
    backend: options.BackendName = "auto",
    force: options.Force = False,
) -> None:
    """Serve models to clients of OpenAI's API.

    Ctrl-C or SIGTERM finishes what runs; a second one ends at once.
    """
    _check_extra()
    if host not in ("127.0.0.1", "localhost", "::1") and not api_key:
        raise InvalidInput(
            f"{host} can be reached by others: give an API key (--api-key, or ANE_BOOK_API_KEY)"
        )
    from ane_book.options import parse_bytes
    from ane_book.serve.app import create_app
    from ane_book.serve.server import run

    limit = None if memory is None else parse_bytes(memory)
    backend = None if backend == "auto" else backend
    found = [_model(model, precision=precision, backend=backend, force=force) for model in models]
    app = create_app(
        found, memory=limit, key=api_key, origins=tuple(cors or ()), waiting=queue, seconds=timeout
    )
    raise typer.Exit(0 if run(app, host, port, timeout) else 130)


def _check_extra() -> None:
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise InvalidInput(
            f"to serve, run `pip install 'ane-book[serve]'`; {', '.join(missing)} is missing"
        )


def _model(given: str, **how: str | bool | None) -> "Model":
    """What a word of the command line names, converted where it has to be."""
    import ane_book
    from ane_book.bundle import Bundle
    from ane_book.progress import progress_bar
    from ane_book.serve.pool import bundle_model

    name, _, place = given.rpartition("=")
    if Path(given).exists() or not name:
        name, place = None, given
    if Path(place, "manifest.json").exists():
        return bundle_model(Bundle.open(place), name, **how)
    with progress_bar() as progress:
        return bundle_model(ane_book.convert(place, progress=progress), name, **how)
