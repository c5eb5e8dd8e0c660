"""`ane-book prefill`: a prompt's cache as a file, which `run` and `chat` go on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
import sys
from typing import Annotated, Any, Literal

from ane_book.cli import options
from ane_book.cli.absent import serving
from ane_book.cli.load import load
from ane_book.cli.terminal import RECIPE
from ane_book.errors import InvalidInput
from mlprogram.cli.options import Precision
import typer

PromptCacheFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt-cache",
        help="Go on from what this file holds of the prompt, if it exists, and write it again at "
        "the end. It is the conversation: mode 600.",
    ),
]
#: Who goes on from a file, by its form; of a model and a file.
READERS = {
    "mlx": "`ane-book run {} PROMPT --prompt-cache {}`, and mlx-lm 0.32 by load_prompt_cache",
    "mlx-swift": "`ane-book run {} PROMPT --prompt-cache {}`, and mlx-swift-lm by loadPromptCache",
    "llama.cpp": "llama_state_seq_load_file, and llama-server with --slot-save-path",
}


@options.takes(options.Recipe, *RECIPE)
@options.takes(options.Sampling, "system")
def prefill_command(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="What to read; - reads it from stdin.")],
    recipe: dict,
    sampling: dict,
    out: Annotated[Path, typer.Option(help="The file; mode 600.")],
    form: Annotated[
        Literal["mlx", "mlx-swift", "llama.cpp"], typer.Option(help="Whose files it is like.")
    ] = "mlx",
    adapter: options.Adapter = None,
    precision: Precision = "fp16",
    backend: options.BackendName = "auto",
    force: options.Force = False,
) -> None:
    """Read a prompt, and write its cache, which others go on from.

    The prompt's last token is not read: whoever writes the answer begins with it.
    """
    llama = serving("llama_cache") if form == "llama.cpp" else None
    session = load(model, "text-generation", precision, backend, force, **recipe)
    if adapter is not None:
        session.use(adapter)
    ids = session.encode(sys.stdin.read() if prompt == "-" else prompt, **sampling)
    if len(ids) == 1:
        raise InvalidInput("the prompt has one token, which is left to read; give a longer one")
    session.prefill(ids[:-1])
    if llama is None:
        session.save_cache(out, form)
    else:
        llama.write_sequence(session.prompt_cache(), out, session.bundle.manifest)
    print(f"{len(ids) - 1:,} tokens read; the last of the prompt, {ids[-1]}, is left to read")
    print(f"{out.stat().st_size:,} bytes: {out}")
    print(f"goes on from it: {READERS[form].format(quote(model), quote(str(out)))}")


@contextmanager
def kept_in(session: Any, file: Path | None) -> Iterator[dict]:
    """Have a `Session` go on from a file, if it exists, and write it; yields what streams take."""
    if file is None:
        yield {}
        return
    from ane_book.runtime.prompt_cache_file import check_form

    check_form(session.bundle.manifest, "mlx")  # refused before an answer, not after it
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"{file}: there is no folder {file.parent}; make it")
    if file.exists():
        session.load_cache(file)
    yield {"reuse_cache": True}
    if session.position:
        session.save_cache(file)
