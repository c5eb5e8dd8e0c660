"""`ane-book serve`: bundles behind OpenAI's API and Anthropic's."""

from contextlib import ExitStack
from importlib.util import find_spec
import os
from pathlib import Path
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

from ane_book.cli import options
from ane_book.cli.load import task_of
from ane_book.errors import InvalidInput
from ane_book.evidence.inspect import is_bundle
from ane_serve.cli import KEY
from mlprogram.cli.options import Precision
from mlprogram.extras import missing
from mlprogram.progress import progress_bar
import typer

if TYPE_CHECKING:
    from ane_serve.pool import Model
    from ane_serve.slots import Slots as Caches


NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}

Models = Annotated[
    list[str],
    typer.Argument(
        help="Reference models, bundles' folders, or weights to convert; NAME=MODEL names "
        "one, which else has the name of the model that it was made of.",
        autocompletion=options.names,
    ),
]
Host = Annotated[str, typer.Option(help="Address; any but loopback needs a key.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keys that clients have to show: a TOML file of tables [NAME] with key, and if wanted "
        "running (requests at once) and minute (requests in 60 s). ANE_BOOK_API_KEY in the "
        "environment is a key without limits.",
    ),
]
Socket = Annotated[
    Path | None, typer.Option(help="Also answer lines of JSON on a unix socket here.")
]
Stdin = Annotated[
    bool, typer.Option("--stdin", help="Answer lines of stdin on stdout, and nothing else.")
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=FOLDER",
        help="A LoRA adapter as PEFT writes it, for the model with --lora-slots: requests name it "
        "as MODEL:NAME.",
    ),
]
Origins = Annotated[
    list[str] | None, typer.Option(help="Origin of pages that may ask, as http://host:port.")
]
Memory = Annotated[str | None, typer.Option(help="Most bytes of models at once, such as 4GB.")]
Slots = Annotated[
    int, typer.Option(min=0, help="Conversations whose caches stay in memory, to go on from.")
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep conversations' caches here, too, for this server and later ones; for its owner "
        "alone.",
    ),
]
CacheLimit = Annotated[
    str | None,
    typer.Option(help="Most bytes of these caches in memory, and most on disk.  [default: 2GB]"),
]
Queue = Annotated[int, typer.Option(min=0, help="Most requests that wait.")]
Seconds = Annotated[
    float, typer.Option(min=0.1, max=1e6, help="Seconds for a request, with its wait.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Cut texts' models over the machines of a Ray cluster: auto, HOST:PORT, or local:N to "
        "try it with N nodes on this one."
    ),
]


def serve(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_keys: Keys = None,
    socket: Socket = None,
    stdin: Stdin = False,
    adapter: Adapters = None,
    cors: Origins = None,
    memory: Memory = None,
    slots: Slots = 0,
    cache_dir: CacheDir = None,
    cache_limit: CacheLimit = None,
    queue: Queue = 64,
    timeout: Seconds = 600.0,
    cluster: Cluster = None,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
) -> None:
    """Serve models to clients of OpenAI's API and of Anthropic's.

    Ctrl-C or SIGTERM finishes what runs; a second one ends at once.
    """
    api_key = os.environ.get(KEY)
    _check(host, api_key, api_keys, socket, cors or [])
    _check_tasks(models, socket, stdin)
    alone = stdin or cluster is not None
    folders = _folders(adapter or [], alone)
    caches = _caches(slots, cache_dir, cache_limit, alone)
    from ane_book.runtime import choose_backend
    from mlprogram.machine import parse_bytes

    limit = None if memory is None else parse_bytes(memory)
    named = None if backend == "auto" else backend
    choose_backend(named, precision)  # refused before a conversion, not after it
    with ExitStack() as stack:
        at_once = 1 if cluster is None else _join(cluster, stack)
        how = {"precision": precision, "backend": named}
        found = [_model(each, cluster is not None, how) for each in models]
        if stdin:
            from ane_serve.json_lines import answer_lines

            for line in answer_lines(sys.stdin, *found[0].slots()[:1]):
                print(line, flush=True)
            return
        from ane_serve.app import create_app
        from ane_serve.keys import read_keys
        from ane_serve.pool import adapted_models
        from ane_serve.server import run

        app = create_app(
            [*found, *(adapted_models(found, folders) if folders else ())],
            memory=limit,
            key=api_key,
            keys=() if api_keys is None else read_keys(api_keys),
            origins=tuple(cors or ()),
            waiting=queue,
            slots=at_once,
            seconds=timeout,
            caches=caches,
        )
        raise typer.Exit(0 if run(app, host, port, socket, timeout) else 130)


def _check(
    host: str, key: str | None, keys: Path | None, socket: Path | None, origins: list[str]
) -> None:
    """Check the options that do not depend on a model; raises InvalidInput."""
    absent = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if absent:
        raise InvalidInput(missing("to serve", "ane-serve", *absent))
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise InvalidInput(
            f"the API key in {KEY} is empty, or has other signs than ASCII's letters, digits and "
            "marks: no client could show it; to serve without a key, unset it"
        )
    if host not in ("127.0.0.1", "localhost", "::1") and not key and not keys:
        raise InvalidInput(
            f"{host} can be reached by others: give an API key in {KEY}, or a file of them "
            "(--api-keys)"
        )
    if socket is not None:
        import asyncio

        if not hasattr(asyncio, "start_unix_server"):
            raise InvalidInput("this system has no unix sockets; leave --socket out")
        if not socket.parent.is_dir():
            raise InvalidInput(f"--socket {socket}: there is no folder {socket.parent}")
    for origin in origins:
        if origin not in ("*", "null") and not re.fullmatch(r"[a-z][\w+.-]*://[^/\s]+", origin):
            raise InvalidInput(
                f"--cors {origin} is not as a browser names a page's site: http://localhost:3000"
            )


def _check_tasks(models: list[str], socket: Path | None, stdin: bool) -> None:
    """Raise InvalidInput, before a conversion, if no model can do what is asked."""
    if stdin and socket:
        raise InvalidInput("--stdin answers on stdout, and nothing else; leave --socket out")
    tasks = [task_of(_place(each)[1]) for each in models] if stdin or socket else []
    if stdin and tasks != ["text-generation"]:
        raise InvalidInput("--stdin takes one model, which generates text")
    if socket and "text-generation" not in tasks:
        raise InvalidInput("--socket takes a model that generates text, among others")


def _folders(adapters: list[str], alone: bool) -> dict[str, Path]:
    """The folders of adapters by name, of NAME=FOLDER; raises InvalidInput.

    alone: the model answers without any, on stdin or from a cluster.
    """
    if adapters and alone:
        raise InvalidInput("--adapter goes with neither --stdin nor --cluster; leave one out")
    folders = {}
    for given in adapters:
        name, _, folder = given.partition("=")
        if not re.fullmatch(r"[\w.-]{1,100}", name) or not folder or name in folders:
            raise InvalidInput(
                f"--adapter {given[:100]}: write NAME=FOLDER, each with a name of its own of "
                "letters, digits, '.', '_' and '-'"
            )
        folders[name] = Path(folder)
    return folders


def _caches(slots: int, folder: Path | None, limit: str | None, alone: bool) -> "Caches | None":
    """The caches of conversations, if they are to be kept; alone: as of `_folders`."""
    from ane_serve.slots import Slots as Caches
    from mlprogram.machine import parse_bytes

    most = parse_bytes(limit or "2GB")
    if not slots and folder is None:
        if limit is not None:
            raise InvalidInput("--cache-limit limits what --slots or --cache-dir keep; give one")
        return None
    if alone:
        raise InvalidInput(
            "--slots and --cache-dir go with neither --stdin nor --cluster; leave one out"
        )
    return Caches(slots, most, folder)


def _join(address: str, stack: ExitStack) -> int:
    """Join a cluster until the stack closes; return its number of machines."""
    from ane_serve.cluster.connection import joined, machines

    stack.enter_context(joined(address))
    return max(1, len(machines()))


def _place(given: str) -> tuple[str | None, str]:
    """Split NAME=MODEL of the command line into the name, or None, and the model."""
    name, _, place = given.rpartition("=")
    if Path(given).exists() or not name:
        return None, given
    if not place:
        raise InvalidInput(f"{given} names no model; write {name}=MODEL, a name or a folder")
    return name, place


def _model(given: str, is_cut: bool, how: dict[str, Any]) -> "Model":
    """Open the model that an argument of the command line names, converting it if necessary.

    is_cut: over the machines of a cluster, where it generates text. how: as `bundle_model` takes.
    """
    import ane_book
    from ane_book.bundle import Bundle
    from ane_serve.pool import TEXT, bundle_model

    name, place = _place(given)
    if is_bundle(place):
        bundle = Bundle.open(place)
    else:
        with progress_bar() as progress:
            bundle = ane_book.convert(place, progress=progress)
    if not is_cut or bundle.manifest.task != TEXT:
        return bundle_model(bundle, name, **how)
    from ane_serve.cluster.pipeline import ClusterPipeline

    return bundle_model(bundle, name, sessions=lambda: ClusterPipeline(bundle, **how).sessions())
