"""`ane-book bench`: how fast a model answers, here and on any server that speaks OpenAI's API."""

from enum import StrEnum
import os
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.cli.load import load
from ane_book.cli.terminal import RECIPE
from ane_serve.cli import KEY
from mlprogram.cli.options import AsJson, Precision
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from ane_serve.bench import Asked


Names = StrEnum("Names", ["tiny", "short", "medium", "long", "stress"])

Local = Annotated[
    str | None,
    typer.Argument(help=f"{options.WEIGHTS}; or a bundle.", autocompletion=options.names),
]
Urls = Annotated[
    list[str] | None,
    typer.Option(
        help="An OpenAI-compatible server to ask as well: http://127.0.0.1:1234/v1, or NAME=URL "
        "where it has several models. The key in ANE_BOOK_API_KEY goes along.",
    ),
]
Some = Annotated[list[Names] | None, typer.Option(help="Some of the five alone.")]


@options.takes("Recipe", *RECIPE)
@options.takes("Sampling", "max_tokens")
def bench_command(
    recipe: dict,
    sampling: dict,
    model: Local = None,
    url: Urls = None,
    only: Some = None,
    repeats: Annotated[int, typer.Option(min=1, help="Answers to every prompt.")] = 3,
    cold: Annotated[bool, typer.Option(help="Time a fresh process, too.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for an answer.")] = 300,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
    as_json: AsJson = False,
) -> None:
    """Time five prompts, tiny to stress, here or on servers.

    Prefill and decode in tokens a second, latency, a fresh process' start, and how much they vary.
    With --url the same prompts go to a server by OpenAI's API, in turns with the model here.
    """
    from ane_serve import bench

    if model is None and not url:
        raise typer.BadParameter("give a model, --url, or both")
    named = [one.rpartition("=") for one in url or ()]
    key = os.environ.get(KEY) or None
    asked: list[Asked] = [bench.Server(at, name or None, key, timeout) for name, _, at in named]
    if model is not None:
        session = load(model, "text-generation", precision, backend, **recipe)
        asked.insert(0, bench.InProcess(session))
    prompts = [one for one in bench.PROMPTS if not only or one.name in only]
    mark = SystemRandom().randrange(1000)
    with progress_bar() as progress:
        report = bench.measure(asked, prompts, repeats, mark, progress=progress, **sampling)
    if model is not None and cold:
        used = ["--precision", precision, "--backend", session.backend.name]
        report.subjects[0].start = bench.cold_start(session.bundle.path, used)
    show(report.to_json, report.text, as_json)
